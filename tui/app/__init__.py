"""The Textual app: its options, messages, help, themes, and what it tells the user beside the screens.

Lives here: the app that owns the sampler thread and the latest board.
"""
