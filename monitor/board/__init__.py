"""The board: snapshots held against budgets; status, divergence, phases, and whether pending jobs fit.

Lives here: ``Watchlist`` turns each snapshot into an immutable ``Board``.
Callers: the dashboard, ``--once``, ``attach`` and ``fit``.
"""
