"""The dashboard over many hosts: one line per host or per run, worst first, for any source of fleets.

Lives here: the screen, its table, the rows of hosts and of runs, and the screens of one host and of one run.
Callers: ``app``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .fleet_table import FleetTable as FleetTable
    from .header_text import FleetFeed as FleetFeed
    from .screen import FleetScreen as FleetScreen, ShowsFleet as ShowsFleet
else:
    __getattr__, __all__ = lazy_exports(
        __name__, {"fleet_table": "FleetTable", "header_text": "FleetFeed", "screen": "FleetScreen ShowsFleet"}
    )
