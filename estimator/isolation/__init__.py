"""Runs a program that changes nothing real: a view of its own of the files, and a record of what it looked at.

``python -I -S isolation/__main__.py ...`` keeps one program (``keeper.py``). It needs Linux and the standard library.
"""
