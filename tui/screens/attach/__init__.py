"""The attach screen: choose a process, confirm its settings, and follow the run against its budget.

Lives here: the screen, its parts, and their text as plain data.
"""
