"""The dashboard over many hosts: one line per host or per run, worst first, for any source of fleets.

Lives here: the screen, its table, the rows of hosts and of runs, and the screens of one host and of one run.
"""
