"""The preflight checks, one small class each.

Lives here: a check reads the context and returns what it found; a new one is added here.
Callers: ``run``.
"""
