"""Memory snapshots of a process with the probe: when it runs out of memory, and on request.

Lives here: dump, on_failure and serve run in the user's process and import nothing of vramtop; ask runs in vramtop.
"""
