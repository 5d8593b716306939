"""The process screen: what one process does now, and everything about it that this user may read.

Lives here: its figures and its details as lines, and the screen.
"""
