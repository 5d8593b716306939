"""Reports as lines of text: budgets, preflight, doctor, anomalies, divergence.

Lives here: what commands print and screens quote; no Textual.
"""
