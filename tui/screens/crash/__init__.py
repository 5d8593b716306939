"""The screen that explains a run that ended out of memory.

Lives here: the failure of a process from its last reading, the question for a file, and the explanation.
"""
