"""The attach screen: a running job beside its budget.

Lives here: the screen, its parts (the ranks, and one of them beside its budget), reading a run, and saving answers.
"""
