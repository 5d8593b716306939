"""The JSON that each command prints with ``--json``, key by key: type checkers hold the commands to it.

Lives here: a typed dict for each object, whose docstrings are the reference page. No command loads them.
"""
