"""The commands: each module has ``add_arguments(parser)`` and ``run(options, launch)``, which returns the exit code.

Lives here: one module per command of ``main.COMMANDS``; ``fit_advice`` and ``wait`` belong to ``fit``; ``dashboard``
and ``once`` are vramtop without a command. Only ``dashboard`` imports Textual.
Callers: ``main``.
"""
