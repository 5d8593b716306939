"""The command line: parsing, errors as one sentence, exit codes, progress and JSON output.

Lives here: ``main``, and one module per command in ``commands``.
Callers: the ``vramtop`` console script; ``python -m vramtop.tui.cli``.
"""

from .import_path import leave_out_current_folder

leave_out_current_folder()

from .main import main as main  # noqa: E402 - imported without the current folder
