"""The fleet: readings of many hosts as plain immutable data, and the board that the dashboard shows of them.

Lives here: ``HostReading`` and what it consists of, ``Fleet`` with its sums, the reading of this host's board, the two
sources of many hosts (ssh and Prometheus), and the board over many hosts.
"""
