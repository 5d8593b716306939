"""Anomalies: processes that hold memory without working, leftovers of dead jobs, and jobs that hinder each other.

Lives here: one rule per anomaly, and the detector that applies them over time.
Callers: ``board`` and the commands that print one reading.
"""
