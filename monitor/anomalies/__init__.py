"""Anomalies: processes that hold memory without working, leftovers of dead jobs, and jobs that hinder each other.

Lives here: the rules, and the detector that reports what lasts.
"""
