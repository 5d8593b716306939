"""The training job: its fields, job file, dtypes, target GPU, and rules that depend on library versions.

Lives here: ``Job`` and what can be told from a job alone, without the model's shape.
Callers: anyone. Imports only ``common``.
"""
