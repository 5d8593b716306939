"""Traces of deep models from those of shallow ones: layers that are alike need to be traced only a few times.

Lives here: the shallow models to trace, the loops in their histories, and the proof that more rounds of them give the
history of the whole model; where there is none, all layers are traced.
Callers: the operation ``trace``.
"""
