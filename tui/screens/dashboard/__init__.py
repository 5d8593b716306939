"""The dashboard screen: GPUs, pending jobs, processes, and ending a process.

Lives here: the screen, its parts, and their text as plain data.
"""
