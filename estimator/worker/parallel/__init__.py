"""Parallelism in the worker: FSDP2, DDP, tensor and sequence parallelism, applied in a fake process group.

Lives here: one module per kind of parallelism, the process group, and the tracking of FSDP's communication.
"""
