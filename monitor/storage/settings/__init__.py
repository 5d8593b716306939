"""The user's settings of vramtop itself: one table of all settings, and ``config.toml``, where they are kept.

Lives here: the schema (name, type, default, meaning, check, flag and environment variable of each), reading and
changing the file, and taking over the older ``settings.json``. Callers: the command line, the app and its screens.
"""
