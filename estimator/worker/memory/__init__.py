"""Memory in the worker: every storage tracked, summed by component, and replayed through the caching allocator.

Lives here: the allocator model (standard library only) and the tracker of storages.
Callers: ``step``, ``parallel``, the trace program; ``estimator.trace`` for replays without torch.
"""
