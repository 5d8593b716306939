"""The model in the worker: built without weights, its parameters listed, a batch of inputs made for it.

Lives here: transformers and peft, on the meta device or on fake tensors.
"""
