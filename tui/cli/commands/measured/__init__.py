"""Commands on the user's measured runs.

Lives here: ``vramtop history``.
Callers: ``main``, which imports the command that is named.
"""
