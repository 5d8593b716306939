"""The fleet: readings of many hosts as plain immutable data, and the runs that span them.

Lives here: ``HostReading`` and what it consists of, ``Fleet`` with its sums, runs over several hosts, the reading of
this host's board, and the interface of whatever reads many hosts. No input or output.
"""
