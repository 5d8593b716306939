"""The preflight screen.

Lives here: the checks of one job as they finish, in rows, and in one line of other screens.
"""
