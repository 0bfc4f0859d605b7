"""What a model costs to train and serve on hardware that is not here: first principles, published rates."""
