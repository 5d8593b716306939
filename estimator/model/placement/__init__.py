"""Placement of a model's modules: tensor-parallel plans, and the devices of a device map.

Lives here: plans as data, the reading of plans in Python files without running them, and accelerate's rules by which
modules are placed on GPUs, CPU and disk.
Callers: ``model``, which counts a rank's share by a plan; ``formula``, and the readers of configurations with plans.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .device_map import (
        Placement as Placement,
        place as place,
        placing_request as placing_request,
        share_of as share_of,
    )
    from .plan_in_file import read_plan_file as read_plan_file
    from .plan_styles import STYLES as STYLES, style_of_class as style_of_class
    from .tensor_plan import (
        Plan as Plan,
        has_unread_plan as has_unread_plan,
        plan_of_job as plan_of_job,
        splits as splits,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "device_map": "place Placement placing_request share_of",
            "plan_in_file": "read_plan_file",
            "plan_styles": "style_of_class STYLES",
            "tensor_plan": "has_unread_plan Plan plan_of_job splits",
        },
    )
