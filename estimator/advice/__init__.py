"""Advice: changes that make a job fit, the largest batch that fits, and how to write a change in the user's own files.

Lives here: the table of changes with their costs, and the search over it.
"""
