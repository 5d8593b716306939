"""Commands whose result a browser shows.

Lives here: ``vramtop report`` and ``vramtop serve``.
Callers: ``main``, which imports the command that is named.
"""
