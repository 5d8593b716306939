"""Flags that describe a job on the command line, with the names that other tools give to the same settings.

Lives here: the table of flags, how their values are read, and the settings that they make together.
"""
