"""One reading of this machine, without a dashboard.

Lives here: ``vramtop --once``, and the reading as text and as JSON.
Callers: ``main``; the dashboard, where the terminal cannot be drawn on.
"""
