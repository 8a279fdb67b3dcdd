"""Trained policies as files that run without Lockstep: ONNX and torch.export, each compared with the policy."""
