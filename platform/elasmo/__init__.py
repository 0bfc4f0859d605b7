"""Elasmo: elastic training and disaggregated serving of multimodal models on Ray."""

__version__ = "0.1.0"
