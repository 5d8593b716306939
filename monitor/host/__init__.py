"""The host: processes, their tree, their containers and interpreters, its memory, and ending a process.

Lives here: everything read from psutil and /proc.
"""
