"""Readers: turn launch lines, training scripts and tools' configuration files into a Job with evidence.

Lives here: reading only; nothing that is read is imported or run.
"""
