"""Follows a Python script without running it: values, expressions, statements, decisions, modules beside it.

Lives here: Python itself; nothing about torch, transformers or memory.
"""
