"""Work off the UI thread: estimates, preflight, recordings, and the user's own commands.

Lives here: threads that post messages; no widgets.
"""
