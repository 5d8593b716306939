"""The preflight screen: the checks of one job as they finish.

Lives here: the screen and its rows.
Callers: the dashboard and the fit check.
"""
