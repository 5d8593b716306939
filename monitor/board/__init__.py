"""The board: one immutable view of GPUs, processes, runs and pending jobs beside their budgets.

Lives here: ``Watchlist`` keeps the known jobs and turns each snapshot into a ``Board``.
"""
