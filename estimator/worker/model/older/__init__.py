"""Code of older library versions on the installed ones: their loss, their experts, their checkpointing.

Lives here: replacements that allocate and save what a version that the job states does, each with its source.
Callers: ``model.build`` and the traced step.
"""
