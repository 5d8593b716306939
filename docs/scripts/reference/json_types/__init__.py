"""The JSON of each command, key by key: a typed dict for each object, whose docstrings are the reference page."""
