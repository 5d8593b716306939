"""The commands: each module has ``run(options, launch)``, which returns the exit code.

Lives here: one module per command of ``main.COMMANDS``; without a command, ``dashboard``, ``once`` or ``fleet`` runs.
Only ``dashboard`` imports Textual.
"""
