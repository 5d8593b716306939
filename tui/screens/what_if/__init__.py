"""The what-if screen: memory of a job over its micro-batch or sequence length, against the GPU's memory.

Lives here: the sweep of quick estimates, its plot, and the screen.
Callers: the fit check.
"""
