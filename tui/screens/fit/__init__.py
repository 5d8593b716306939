"""The fit check: a job's settings as a form, its verdict, suggestions and what-if sweeps.

Lives here: the screen, its parts, and the estimates behind them.
"""
