"""Sentences about what a device map means for a job."""

from collections.abc import Iterator

from ...common import format_gib
from ..plan import Plan


def placement_assumptions(plan: Plan) -> Iterator[str]:
    """Yield where the modules are, and what runs them."""
    placement = plan.placement
    if placement is None:
        return
    blocks = ", ".join(str(sum(module.block for module in held)) for held in placement.gpus)
    gpus = "GPU has" if len(placement.gpus) == 1 else "GPUs have"
    yield f"Modules are placed by accelerate's rules: the {gpus} {blocks} blocks and run one after the other."
    for name, held in (("CPU RAM", placement.host), ("the disk", placement.disk)):
        if held:
            size = format_gib(sum(module.size for module in held))
            yield f"{size} GiB of weights stay in {name}: the first GPU runs their layers, and copies one at a time."


def placement_warnings(plan: Plan) -> Iterator[str]:
    """Yield that a job cannot run with what no GPU has room for."""
    if plan.placement is not None and plan.placement.refused:
        size = format_gib(sum(module.size for module in plan.placement.refused))
        yield (
            f"No GPU has room for {size} GiB of the weights: device_map would place them in CPU RAM, where they cannot "
            f"be {'trained' if plan.job.trains else 'in few bits'}; they are counted on the last GPU."
        )
