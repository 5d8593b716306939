"""Commands that serve metrics.

Lives here: ``vramtop export``.
Callers: ``main``, which imports the command that is named.
"""
