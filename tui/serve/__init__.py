"""The dashboard in the browser: a web server that starts one dashboard for each page and shows its terminal there.

Lives here: who may ask (``guard``), the server and its pages (on textual-serve), and the dashboards' processes.
Callers: ``vramtop serve``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .guard import Guard as Guard
    from .server import BrowserServer as BrowserServer, require_textual_serve as require_textual_serve
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {"guard": "Guard", "server": "BrowserServer require_textual_serve"},
    )
