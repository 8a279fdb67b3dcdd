"""Export of trained policies to ONNX and torch.export files that run without Lockstep; each file is verified.

Begin with `acting_export.py` (policies trained in environments) or `offline_export.py` (policies learned from logs).
"""
