"""The alerts screen: what is wrong now, what may become an alert, what has cleared, and the quiet hours.

Lives here: the screen, its keys, and its text.
Callers: ``app`` through the registry.
"""
