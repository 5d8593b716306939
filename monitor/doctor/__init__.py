"""The doctor's report: facts about this machine for a bug report, without secrets and names.

Lives here: facts about the driver, vramtop's files, permissions and the system, and the issues found in them.
"""
