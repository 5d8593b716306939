"""Snapshots: one immutable reading of all GPUs and processes, and the history of readings.

Lives here: the plain data that every source produces, and what follows from it alone.
"""
