"""Sources of settings: files, flags, their precedence, and the evidence that each value carries.

Lives here: reading bounded YAML, JSON and TOML; paths as the observed process sees them.
"""
