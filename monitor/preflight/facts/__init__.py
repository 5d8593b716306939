"""Facts for the preflight checks: interpreter, packages, model files, disk space, hub access, launch line and machine.

Lives here: collection only; the checks judge.
Callers: ``context``, ``checks`` and ``prepare``.
"""
