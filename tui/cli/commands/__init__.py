"""The commands: each module takes parsed options and returns an exit code.

Lives here: one module per command; only ``dashboard`` imports Textual.
Callers: ``main``.
"""
