"""One table of arguments and defaults: a TOML file for each library or tool, and the functions that apply its lines.

Lives here: what single arguments mean. What depends on several arguments, or on the model, is in the readers.
"""
