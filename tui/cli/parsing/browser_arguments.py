"""The arguments of the commands whose result a browser shows."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .parser import Parser

PLOT_FORMATS = ("png", "svg")


def add_report_arguments(parser: "Parser") -> None:
    """Add the arguments of ``vramtop report``."""
    parser.usage = "vramtop report RECORDING|HISTORY [FLAG ...]"
    parser.examples = """\
  vramtop report run.jsonl.gz                 writes run.html
  vramtop report run.jsonl.gz --plots plots --plot-format svg
  vramtop report history --out measured.html  the runs of vramtop history
"""
    parser.epilog = (
        "The file has everything in it: opening it loads nothing and runs no script. Budgets are those of the closed "
        "form. Plots as files need matplotlib: pip install 'vramtop-budget[report]'."
    )
    text = (
        "A recording, as vramtop record makes it; history: your measured runs; or a file of measured runs, as "
        "vramtop history --export writes it (.jsonl), or another user's history.sqlite3."
    )
    parser.add_argument("source", metavar="RECORDING|HISTORY", help=text)
    text = "The HTML file; -: standard output (default: the recording's name with .html, in the current folder)."
    parser.add_argument("--out", metavar="FILE", help=text)
    parser.add_argument("--plots", metavar="FOLDER", help="Also write each plot as a file of its own into this folder.")
    text = "Format of these files (default: png)."
    parser.add_argument("--plot-format", choices=PLOT_FORMATS, default="png", help=text)
    parser.add_argument("--overwrite", action="store_true", help="Replace existing files.")
