"""The program that runs: launchers, the script's source, environment, rank count and the run's own logs.

Lives here: what can be read before it is known which tool trains.
Callers: ``trainer``, ``tools``, the two entry points of ``readers``; preflight and ``monitor.host`` for launch lines.
"""
