"""The arguments of the commands whose result a browser shows."""

from typing import TYPE_CHECKING

from .shared_flags import add_name_argument

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


def add_serve_arguments(parser: "Parser") -> None:
    """Add the arguments of ``vramtop serve``."""
    parser.usage = "vramtop serve [FLAG ...] [-- DASHBOARD FLAG ...]"
    parser.examples = """\
  vramtop serve                     prints an address to open; Ctrl-C stops
  vramtop serve --listen 8000       then: ssh -L 8000:127.0.0.1:8000 HOST
  vramtop serve -- --demo           with flags of the dashboard
"""
    parser.epilog = (
        "Whoever knows the address, which has a random token in it, sees the dashboard; it changes with each start. "
        "Nothing can be changed from the browser (vramtop --view-only) unless --allow-actions is given. Pages and "
        "their websocket are refused under other names than this machine's, and to pages of other servers. It needs "
        "textual-serve: pip install 'vramtop-budget[serve]'."
    )
    text = "Address to serve on: HOST:PORT, PORT, or :PORT for all addresses (default: 127.0.0.1 and a free port)."
    parser.add_argument("--listen", metavar="HOST:PORT", help=text)
    add_name_argument(parser)
    text = "Let the browser do what the terminal can: end processes, check and save jobs, record."
    parser.add_argument("--allow-actions", action="store_true", help=text)
