"""The attach screen: a running job beside its budget.

Lives here: the screen, and its parts: the choice of a process, the runs, the ranks of one, and one of its processes.
"""
