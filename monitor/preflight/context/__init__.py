"""What every preflight check receives: the job and the facts; and the form of a finding.

Lives here: ``Check``, ``Context``, and the GPUs assigned to ranks.
Callers: ``checks``, ``prepare`` and ``run``.
"""
