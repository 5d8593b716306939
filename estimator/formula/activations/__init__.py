"""Activations: bytes that the forward pass saves for the backward pass, and that blocks need while they run."""
