"""What training loops other than the Trainer's do differently: their losses, fused kernels, checkpointing and norms.

Lives here: stand-ins that save and allocate what the originals do, on transformers' own model. Callers: ``step``.
"""
