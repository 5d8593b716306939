"""The traced training step: forward, backward and optimizer, with CUDA's kernels and autocast imitated on CPU tensors.

Lives here: what transformers' Trainer does in one step.
Callers: the trace program.
"""
