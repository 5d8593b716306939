"""Facts about the machine for preflight: interpreters, weights on disk, free disk space, access rights, launch, GPUs.

Lives here: gathering only; no judgement.
Callers: ``context``, ``checks`` and ``prepare``.
"""
