"""Parts of ``vramtop measure``: the GPUs that may be used, one job's measurement, the report.

Lives here: what the command does beside starting the steps (``estimator.trace.measure``).
"""
