"""Training as ONNX graphs, which ONNX Runtime executes without PyTorch: a step, a calibration, and
an evaluation.
"""
