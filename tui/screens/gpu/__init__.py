"""The GPU screen: everything that the driver reports of one GPU, read only while it is open.

Lives here: the screen, its lines and its graphs.
Callers: ``app``, through the table of screens.
"""
