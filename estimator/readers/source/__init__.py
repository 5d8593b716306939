"""Sources of settings: files, flags and their precedence, and the evidence that each value carries.

Lives here: reading bounded YAML, JSON and TOML, and paths as the observed process sees them.
Callers: all readers.
"""
