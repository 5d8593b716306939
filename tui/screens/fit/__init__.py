"""The fit check: a job's settings as a form, and beside it whether that job would fit.

Lives here: the screen, and its parts: the form, the choice of GPUs, the verdict, suggestions, and the way back.
"""
