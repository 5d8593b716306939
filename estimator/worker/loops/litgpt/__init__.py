"""LitGPT's own model, its LoRA layers and the loss of its scripts, built from the config of a Hugging Face model.

Lives here: modules that save and allocate what LitGPT's do, operation by operation. Callers: ``loops``, ``step``.
"""
