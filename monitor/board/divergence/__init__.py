"""Divergence: the memory of a running process compared with the budget of its job.

Lives here: the status (on budget, over, under, growing, ...), the phase of the run, and the likely causes.
Callers: ``board``, the attach screen and the ``attach`` command.
"""
