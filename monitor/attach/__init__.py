"""Attaching: from a PID to its job, ranks, GPUs and the evidence for each setting.

Lives here: reading running processes, and the answers that users gave about them.
Callers: the dashboard's attach screen and the ``attach`` command.
"""
