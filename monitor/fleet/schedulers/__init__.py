"""Schedulers: the GPUs that they have to give, to match a job with them before it is submitted.

Lives here: what ``scontrol`` says of a Slurm cluster's nodes, the cards behind the names that a cluster gives its GPUs,
and how ranks spread over nodes.
Callers: the ``fit`` command.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .card_names import CardMatch as CardMatch, CardSize as CardSize, match_card as match_card
    from .slurm_cluster import (
        NoSlurmError as NoSlurmError,
        SlurmCluster as SlurmCluster,
        read_cluster as read_cluster,
    )
    from .slurm_nodes import SlurmNode as SlurmNode, SlurmPartition as SlurmPartition
    from .spread import NodeSpace as NodeSpace, Spread as Spread, spread_over as spread_over
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "card_names": "CardMatch CardSize match_card",
            "slurm_cluster": "NoSlurmError read_cluster SlurmCluster",
            "slurm_nodes": "SlurmNode SlurmPartition",
            "spread": "NodeSpace Spread spread_over",
        },
    )
