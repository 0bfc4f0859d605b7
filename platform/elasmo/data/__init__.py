"""What a training run reads: snapshots and gold, lineage, the step plan, and the streams of its rows."""
