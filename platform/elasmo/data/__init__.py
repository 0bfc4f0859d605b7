"""From a dataset folder to rows that training can name: layers, splits, lineage, the step plan and its streams."""
