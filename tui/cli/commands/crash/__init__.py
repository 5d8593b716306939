"""Commands on runs that ran out of memory: their explanation, and memory snapshots on request.

Lives here: ``vramtop explain`` and ``vramtop snapshot``.
Callers: ``main``, which imports the command that is named.
"""
