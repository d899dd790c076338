"""From a finished run to ONNX files on the agents: export, rollout, canary, history."""
