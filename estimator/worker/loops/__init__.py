"""Training loops other than the Trainer's, as far as they differ: their losses, fused kernels, checkpointing and norms.

Lives here: stand-ins that save and allocate what the originals do, on transformers' own model. Callers: ``step``.
"""
