"""`python -m benchmarks trainstep`: training as ONNX graphs, compared with PyTorch."""
