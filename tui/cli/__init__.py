"""The command line: parsing, errors as one sentence, exit codes, progress and JSON output.

Lives here: ``main``, and one module per command in ``commands``.
Callers: the ``vramtop`` console script; ``python -m vramtop.tui.cli``.
"""

from .main import main as main
