"""One multimodal decoder for training and serving, with what goes into it and what it is saved as. Runs without Ray."""
