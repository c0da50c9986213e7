"""What is inside a checkpoint, read without running anything from it."""
