"""The fit screen over the fleet: a job that the user types, and the hosts that can take it now, later, or empty.

Lives here: the screen, its list of hosts, and the estimates and placements behind it, which run off the UI thread.
Callers: the dashboard over many hosts and its app.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .judging import BudgetsFor as BudgetsFor
    from .screen import FleetFitScreen as FleetFitScreen
else:
    __getattr__, __all__ = lazy_exports(__name__, {"judging": "BudgetsFor", "screen": "FleetFitScreen"})
