"""Widgets that several screens share.

Lives here: small Textual widgets that know budgets and text, but no screen.
"""
