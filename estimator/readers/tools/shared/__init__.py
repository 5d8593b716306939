"""Building blocks that several tools use.

Lives here: the ``Tool`` record, reading a file with its overrides, rules from settings to job keys, known models.
Callers: the modules of ``tools``.
"""
