"""Reports as lines of text: budgets, crashes, preflight.

Lives here: what commands print and screens quote; no Textual.
"""
