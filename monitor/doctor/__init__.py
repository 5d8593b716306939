"""The doctor's page: facts about this machine for a bug report, without secrets or names.

Lives here: facts about driver, files, access and system, and the findings drawn from them.
Callers: the ``doctor`` command and preflight's machine facts.
"""
