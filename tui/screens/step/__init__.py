"""The step screen: memory by component over one training step, and the largest tensors.

Lives here: the screen, its graph and its table.
Callers: ``app``, and the fit and attach screens.
"""
