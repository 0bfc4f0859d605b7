"""What a run did and what it cost: the run log, its figures, the report."""
