"""Input and output of a preflight check: the job with the facts about its machine, and the form of a result.

Lives here: ``CheckContext``, ``Check``, ``CheckResult``, and the GPUs that the ranks will use.
Callers: ``checks``, ``prepare`` and ``run_checks``.
"""
