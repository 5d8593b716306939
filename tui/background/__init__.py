"""Work off the UI thread: estimates, preflight, recordings, and reading processes.

Lives here: threads that post messages; no widgets.
Callers: ``screens`` and ``app``.
"""
