"""Rules as tables: frameworks, optimizers, strategies and precisions, library versions, and the dtypes that follow.

Lives here: one record per name that a job file may give; ``resolved_job`` looks them up once.
"""
