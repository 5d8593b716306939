"""Automatic attaching: every training process on a GPU is read by itself, and its run gets a budget.

Lives here: ``AutomaticAttach``, which decides what is read and when; the worker process that reads; budgets that are
traced while the machine is idle; and the program that follows what ``vramtop run`` starts.
"""
