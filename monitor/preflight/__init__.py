"""Preflight: whether all that a job needs is there, before it is started. ``run.run`` makes the checks.

A new check is a small class in one of the modules here, and a line in ``run.CHECKS``.
"""
