"""Release of a run to its agents as ONNX files: export, rollout, canary, history."""
