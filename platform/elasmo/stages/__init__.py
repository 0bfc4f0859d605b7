"""The ledger of what every stage of an ingestion cost and how it ended, and forecasts of how the next will."""
