"""The step screen: memory of one training step by component, and the largest tensors at its peak.

Lives here: the screen, and its graph and its tensors as plain data.
"""
