"""Readers: launch lines, training scripts and other tools' configuration files to a Job, with evidence for each value.

Lives here: reading only; nothing that is read is imported or run.
Callers: ``monitor.attach``, preflight, ``advice``, and the command line (``config_file``, ``launch_line``).
"""
