"""The user's own program, run without a GPU: host tensors are real, GPU tensors are fake.

Imported by the worker only: it needs torch.
"""
