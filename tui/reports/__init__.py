"""Reports as lines of text: budgets, running jobs, crashes, preflight, divergences.

Lives here: what commands print and screens quote; no Textual.
"""
