"""Gradients of operators in terms of operators that ONNX has, one file per kind of operator."""
