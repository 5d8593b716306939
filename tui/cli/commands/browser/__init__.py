"""Commands whose result a browser shows.

Lives here: ``vramtop report``.
Callers: ``main``, which imports the command that is named.
"""
