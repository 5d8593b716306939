"""Plain readings of training scripts: what their literals, options and known libraries' calls say.

Lives here: reading only; nothing that is read is imported or run.
"""
