"""Reports as one HTML file, of a recording or of measured runs, and their plots as files.

Lives here: plots as plain data, drawn into the page as SVG and, with matplotlib, into files of their own. No Textual
screen, no reading of recordings.
Callers: ``vramtop report``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .history_page import history_plot as history_plot
    from .plot_files import require_matplotlib as require_matplotlib, save_plots as save_plots
    from .plots import Plot as Plot
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {"history_page": "history_plot", "plot_files": "require_matplotlib save_plots", "plots": "Plot"},
    )
