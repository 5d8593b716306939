"""The doctor's page: facts about this machine for a bug report, without names and secrets, and the issues in them.

Lives here: the facts, how they are collected, what is removed from them, and what is wrong or unusual in them.
"""
