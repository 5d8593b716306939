"""The model in the worker: built without weights, its parameters listed, its inputs made.

Lives here: transformers and peft, on the meta device or on fake tensors.
Callers: ``parallel``, ``step`` and the worker programs.
"""
