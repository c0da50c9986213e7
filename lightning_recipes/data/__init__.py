"""Data whose order and augmentation are functions of coordinates."""
