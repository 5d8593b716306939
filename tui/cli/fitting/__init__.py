"""Parts of ``vramtop fit``: its advice, waiting until a job fits, and the cards on which it would fit.

Lives here: what ``commands/fit.py`` prints and does beside the verdict itself.
Callers: ``commands``.
"""
