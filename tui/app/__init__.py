"""The Textual app: screens, messages, help, and events of pending jobs.

Lives here: the app that owns the sampler thread and the latest board.
"""
