"""The GPU screen: what one GPU does, what holds it back, its links and health, and the processes on it.

Lives here: the screen, and the figures that it shows as lines of text.
"""
