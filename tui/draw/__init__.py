"""Drawing as plain data: bars, graphs, the palette, labels, and what the terminal can show.

Lives here: text and colours without Textual, for the dashboard and the command line alike.
Callers: every other room.
"""
