"""Parts of ``vramtop fit`` and ``run --fit``: the check, its advice, the GPUs of this machine, and waiting for them.

Lives here: what commands that place a job on GPUs print and do beside the verdict itself.
"""
