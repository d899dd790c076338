"""Local training with PyTorch: the loop, its hooks, and what a device keeps between rounds."""
