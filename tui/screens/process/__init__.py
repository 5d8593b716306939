"""The process screen: what one process does now, and everything about it that this user may read.

Lives here: the screen, its keys, and its text.
Callers: ``app`` through the registry; its key works on the dashboard and on the attach screen.
"""
