"""Bytes that the forward pass saves, temporary memory of a block, logits and loss, and the KV cache.

Lives here: formulas per token and per block, each with its source.
"""
