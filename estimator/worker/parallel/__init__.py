"""Parallelism in the worker: FSDP2, DDP, tensor and sequence parallelism, really applied under a fake process group.

Lives here: one module per kind of parallelism.
Callers: ``step``.
"""
