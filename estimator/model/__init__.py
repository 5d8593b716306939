"""The model: its config, architecture, family, parameters, LoRA adapters, and the share of them that one rank holds.

Lives here: everything that follows from a model's config; no training settings, no bytes of activations.
"""
