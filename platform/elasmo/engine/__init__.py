"""Inference without Ray: sampling, paged KV cache, continuous batching."""
