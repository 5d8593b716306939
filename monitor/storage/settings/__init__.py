"""The user's settings of vramtop itself: one table of all settings, and ``config.toml``, where they are kept."""
