"""Anomalies: processes that hold memory without working, leftovers of dead jobs, and jobs that hinder each other.

Lives here: the rules that find anomalies in a snapshot, and the detector that applies them over time.
Callers: ``board`` and the commands that print one reading.
"""
