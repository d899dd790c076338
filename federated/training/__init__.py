"""Local training with PyTorch: loop, hooks, scores, device memory, and predicted durations."""
