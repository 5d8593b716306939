"""The training job: its fields, its job file, the tables of rules it selects, and the job resolved with them.

Lives here: ``Job``, ``ResolvedJob``, and the tables of frameworks, optimizers, strategies, precisions and GPUs.
"""
