"""Commands about several hosts: ``stream``, which runs on each of them, and the dashboard and ``--once`` over them.

Lives here: one module per command.
Callers: ``main``.
"""
