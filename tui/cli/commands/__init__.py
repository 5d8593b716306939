"""The commands: each module has ``run(options, launch)``, which returns the exit code.

Lives here: one module per command of ``main.COMMANDS``; ``dashboard`` and ``once`` are vramtop without a command. Only
``dashboard`` imports Textual.
Callers: ``main``.
"""
