"""The command line: parsing, errors as one sentence, exit codes, progress and JSON output.

Lives here: ``main``, and one module per command in ``commands``.
Callers: the ``vramtop`` console script; ``python -m vramtop.tui.cli``.
"""

from .import_path import leave_out_current_folder

leave_out_current_folder()

try:
    from .main import main as main  # imported without the current folder
except KeyboardInterrupt:  # Ctrl-C while modules are loaded
    raise SystemExit(130) from None
