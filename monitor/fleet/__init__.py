"""The fleet: readings of many hosts as plain immutable data, and the runs that span them.

Lives here: ``HostReading`` and what it consists of, ``Fleet`` with its sums, runs over several hosts, the reading of
this host's board, and the interface of whatever reads many hosts. No input or output.
Callers: ``vramtop stream``, the sources of fleets, and the screens and commands about many hosts.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .board_reading import reading_of_board as reading_of_board
    from .fleet import (
        Fleet as Fleet,
        FleetSource as FleetSource,
        FleetTotals as FleetTotals,
        MemoryHistorySource as MemoryHistorySource,
    )
    from .fleet_run import FleetRank as FleetRank, FleetRun as FleetRun
    from .host_reading import (
        FleetGpu as FleetGpu,
        FleetProcess as FleetProcess,
        HostReading as HostReading,
        HostTotals as HostTotals,
        RankFacts as RankFacts,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "board_reading": "reading_of_board",
            "fleet": "Fleet FleetSource FleetTotals MemoryHistorySource",
            "fleet_run": "FleetRank FleetRun",
            "host_reading": ("FleetGpu FleetProcess HostReading HostTotals RankFacts"),
        },
    )
