"""Elastic training: the step loop on DeepSpeed, checkpoints, and the Ray Train side that survives lost nodes."""
