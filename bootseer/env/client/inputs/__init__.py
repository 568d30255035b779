"""What the result of an install command depends on: the inputs of its key."""
