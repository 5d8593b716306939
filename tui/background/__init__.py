"""Work off the UI thread: estimates, preflight, recordings, reading processes, and the user's own commands.

Lives here: threads that post messages; no widgets.
"""
