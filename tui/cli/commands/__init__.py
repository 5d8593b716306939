"""The commands: each module has ``run(options, launch)``, which returns the exit code.

Lives here: one module per command of ``main.COMMANDS``; vramtop without a command is ``dashboard`` or ``reading.once``.
Only ``dashboard`` imports Textual.
"""
