"""Preflight: checks before launch that everything a job needs is present.

Lives here: ``prepare`` builds the context of a job, ``run_checks`` runs the checks and collects their results.
"""
