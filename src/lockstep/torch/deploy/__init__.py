"""Export of trained policies to ONNX and torch.export files that run without Lockstep; each file is verified."""
