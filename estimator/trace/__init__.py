"""Estimates made by a worker process that has torch: the traced step and the exact parameter count.

Lives here: choosing an interpreter, talking to the worker, caching its answers, and turning them into budgets.
"""
