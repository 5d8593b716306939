"""Memory in the worker: every storage tracked, summed by component, and replayed through the caching allocator.

Lives here: the tracker of storages, its summary, and the allocator model (standard library only).
"""
