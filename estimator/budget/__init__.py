"""The budget: memory by phase and component, the peak, its range, and the JSON form.

Lives here: the result of every estimate, as plain data without arithmetic of its own.
Callers: anyone. Budgets are built in ``formula`` and ``trace``.
"""

from typing import TYPE_CHECKING

from ..common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .budget import (
        Budget as Budget,
        ComponentName as ComponentName,
        Components as Components,
        LargeTensor as LargeTensor,
        Method as Method,
        ModelFacts as ModelFacts,
        Peak as Peak,
        Phase as Phase,
        PhaseMark as PhaseMark,
        PhaseName as PhaseName,
        RankPeak as RankPeak,
        Timeline as Timeline,
    )
    from .fields_of import FieldsOf as FieldsOf
    from .host_need import HostNeed as HostNeed
    from .json_types import BudgetJson as BudgetJson, HostNeedJson as HostNeedJson, PlainJob as PlainJob
    from .learned import Learned as Learned
    from .rank_peaks import RankPeaks as RankPeaks
    from .ray_bundles import ray_bundles as ray_bundles
    from .serving_need import ServingNeed as ServingNeed
    from .serving_share import budget_on_gpu as budget_on_gpu
    from .span import Span as Span
    from .uncertainty import widen_for_uncertainty as widen_for_uncertainty
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "budget": (
                "Budget ComponentName Components LargeTensor Method ModelFacts Peak Phase PhaseMark PhaseName "
                "RankPeak Timeline"
            ),
            "fields_of": "FieldsOf",
            "host_need": "HostNeed",
            "json_types": "BudgetJson HostNeedJson PlainJob",
            "learned": "Learned",
            "rank_peaks": "RankPeaks",
            "ray_bundles": "ray_bundles",
            "serving_need": "ServingNeed",
            "serving_share": "budget_on_gpu",
            "span": "Span",
            "uncertainty": "widen_for_uncertainty",
        },
    )
