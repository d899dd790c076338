"""Export a run as ONNX files, and release them to agents: to a few first (the canary) or to all."""
