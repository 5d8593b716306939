"""Attaching: from a PID to its job, ranks, GPUs and the evidence for each setting.

Lives here: ``read_run`` reads the processes of a run; ``SavedAnswers`` keeps the settings that users filled in.
"""
