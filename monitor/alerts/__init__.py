"""Alerts: what is wrong here for so long that the user should be told, and when they want to be told.

Lives here: the rules, their conditions on a board, and the states of the alerts. Nothing is
shown or started from here. Callers: ``tui/app`` and the alerts screen.
"""
