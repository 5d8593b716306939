"""Preflight: checks before launch that everything a job needs is present.

Lives here: ``prepare`` gathers the facts, ``run`` applies the checks.
Callers: the preflight screen and the ``preflight`` command.
"""
