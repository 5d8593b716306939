"""The traced training step: forward, backward and optimizer, with CUDA's kernels and autocast imitated on CPU tensors.

Lives here: the steps of transformers' Trainer, and which jobs a trace supports.
"""
