"""The history: measurements of the user's own runs, in one small file of the user's.

Lives here: the file, what makes measurements of runs, and what corrects budgets by them.
"""
