"""Export trained networks as ONNX files that a device runs without PyTorch. Importing this package
does not import torch.
"""
