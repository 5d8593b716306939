"""Device maps and tensor-parallel plans of a user's own: sentences about them, and the doubt that they leave."""

from collections.abc import Callable, Iterator

from ..budget import Peak
from ..common.records import replace
from ..common.sizes import format_gib
from ..job.job import Job
from ..model.tensor_plans import has_unread_plan, plan_of_job, splits
from .plan import Plan


def placement_assumptions(plan: Plan) -> Iterator[str]:
    """Yield where the modules are, and what runs them."""
    placement = plan.placement
    if placement is None:
        return
    blocks = ", ".join(str(sum(module.block for module in held)) for held in placement.gpus)
    gpus = "GPU has" if len(placement.gpus) == 1 else "GPUs have"
    yield f"Modules are placed by accelerate's rules: the {gpus} {blocks} blocks and run in turn."
    for name, held in (("CPU RAM", placement.host), ("the disk", placement.disk)):
        if held:
            size = format_gib(sum(module.size for module in held))
            yield f"{size} GiB of weights stay in {name}: the first GPU runs these layers and copies one at a time."


def placement_warnings(plan: Plan) -> Iterator[str]:
    """Yield what the job's own plan leaves whole, what no GPU has room for, and that the blocks of a model differ."""
    job = plan.job.job
    if has_unread_plan(job):
        yield (
            f"parallel.tensor_plan: {job.parallel.tensor_plan} cannot be read without running it: the figure uses the "
            "model's own plan, and the range allows for no plan."
        )
    elif names := ", ".join(_whole_layers(plan)):
        yield f"parallel.tensor_plan leaves {names} whole on every rank: the range allows for their activations."
    if plan.placement is not None and plan.placement.refused:
        size = format_gib(sum(module.size for module in plan.placement.refused))
        yield (
            f"No GPU has room for {size} GiB of the weights: device_map would place them in CPU RAM, where they "
            f"cannot be {'trained' if plan.job.trains else 'quantized'}; they are counted on the last GPU."
        )
    if _are_unlike(plan):
        yield (
            "The model has two kinds of blocks, and each GPU of the device map is counted with their average; the "
            "range allows for the difference."
        )


_SPLIT_ROLES = ("attention", "mlp", "expert")


def with_split_doubt(peak: Peak, plan: Plan, peak_of: Callable[[Job], Peak]) -> Peak:
    """Return the peak with a range that allows for what the job's own plan may leave whole.

    Weights, gradients and states are counted as the plan splits them; activations as if it split all of a block. A plan
    that cannot be read may split nothing.

    Args:
        peak: by the plan, or by the model's own if the job's cannot be read.
        plan: the job's figures.
        peak_of: returns the peak of another job on the same model.
    """
    job = plan.job.job
    if job.parallel.tensor_plan is None or job.parallel.tensor == 1:
        return peak
    more = 0
    if has_unread_plan(job) or any(True for _ in _whole_layers(plan)):
        whole = peak_of(_with(job, tensor=1, tensor_plan=None, sequence_parallel=False)).components
        here = peak.components
        more = max(0, whole.activations + whole.temporary - here.activations - here.temporary)
    if has_unread_plan(job):
        peak = peak.joined_with(peak_of(_with(job, tensor_plan={})))
    return peak.with_ranges(lambda span: span.moved(0, more=more))


def _whole_layers(plan: Plan) -> Iterator[str]:
    """Yield the names of the blocks' linear layers that the job's own plan does not split."""
    own = plan_of_job(plan.job.job)
    if own is None:
        return
    for group in plan.inventory.groups:
        if group.role in _SPLIT_ROLES and group.layered and len(group.shape) > 1 and not splits(own, group.name):
            yield group.name.removesuffix(".weight").rpartition(".*.")[2]


def _with(job: Job, **changes: object) -> Job:
    return replace(job, parallel=replace(job.parallel, **changes))


_SHARE = 0.5
"""Share of the memory beside the weights, either way: a judgment. Such prompts were up to 88 % off traced ones."""


def with_unlike_blocks(peak: Peak, plan: Plan) -> Peak:
    """Return the peak with a range that allows for blocks of two kinds on different GPUs."""
    if not _are_unlike(plan):
        return peak
    parts = peak.components
    by = round(_SHARE * (parts.activations + parts.logits + parts.temporary))
    return peak.with_ranges(lambda span: span.moved(0, less=by, more=by))


def _are_unlike(plan: Plan) -> bool:
    """Return True for several GPUs that have blocks of two kinds."""
    placement, arch = plan.placement, plan.arch
    if placement is None or len(placement.gpus) < 2:
        return False
    return bool(arch.encoder_layers and arch.decoder_layers) or bool(arch.moe_layers and arch.dense_layers)
