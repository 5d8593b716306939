"""Sources of snapshots: NVML, a recording, the demo, or none; and the thread that samples one.

Lives here: one class per source, with ``open``, ``read`` and ``close``.
"""
