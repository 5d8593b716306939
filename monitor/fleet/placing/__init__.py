"""A job over the fleet: which hosts can take it now, which later, and where it leaves the largest free block.

Lives here: the memory that each GPU of a fleet has for a job, the choice of GPUs and hosts, and the verdicts. No input
or output.
Callers: ``vramtop fit`` over a Prometheus or over hosts.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .fleet_fit import FleetFit as FleetFit, place_job as place_job
    from .gpu_space import Card as Card
    from .host_fit import HostFit as HostFit
    from .json_types import FleetFitJson as FleetFitJson
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "fleet_fit": "FleetFit place_job",
            "gpu_space": "Card",
            "host_fit": "HostFit",
            "json_types": "FleetFitJson",
        },
    )
