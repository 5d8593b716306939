"""The model: its config, architecture, family, parameters, LoRA adapters, and the share of them that one rank holds.

Lives here: everything that follows from a model's config; no training settings, no bytes of activations.
Callers: ``formula``, ``trace``, ``causes``, and the readers and checks that look up a model.
"""
