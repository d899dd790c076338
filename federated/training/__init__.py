"""Local training with PyTorch: the loop, its hooks, and the memory of a device between rounds."""
