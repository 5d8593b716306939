"""Tools: one module per training tool, each turning that tool's flags and files into a Job.

Lives here: each module exports a ``TOOL``, which ``tool_registry`` finds by itself; a new tool is one new module here.
"""
