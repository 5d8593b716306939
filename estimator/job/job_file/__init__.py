"""The job file: read, converted, changed, edited and saved.

Lives here: TOML to ``Job`` and back, changes by dotted keys, and the words for what is wrong with a value.
"""
