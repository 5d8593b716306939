"""Helpers that several tool readers share: merged settings, known model names, key translation.

Lives here: no tool's own keys.
Callers: the modules of ``tools``.
"""
