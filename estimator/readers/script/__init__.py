"""Reads training scripts without running them: literals, options, and calls of known libraries.

Lives here: reading only; nothing that is read is imported or run.
"""
