"""Tools: one module per training tool, each turning that tool's flags and files into a Job.

Lives here: the tools' own keys and defaults; ``registry`` finds the module for a program or a file.
Callers: the two entry points of ``readers`` and ``monitor.host.run_processes``.
"""
