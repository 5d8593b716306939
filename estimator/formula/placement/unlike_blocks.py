"""The doubt about a device map whose GPUs have unlike blocks: each is counted with blocks of the average kind."""

from collections.abc import Iterator

from ...budget import Peak
from ..plan import Plan

_SHARE = 0.5
"""Share of the memory beside the weights, either way: a judgment. Such prompts were up to 88 % off traced ones."""


def with_unlike_blocks(peak: Peak, plan: Plan) -> Peak:
    """Return the peak with a range that allows for blocks of two kinds on different GPUs."""
    if not _are_unlike(plan):
        return peak
    parts = peak.components
    by = round(_SHARE * (parts.activations + parts.logits + parts.temporary))
    return peak.with_ranges(lambda span: span.moved(0, less=by, more=by))


def unlike_blocks_warnings(plan: Plan) -> Iterator[str]:
    """Yield that the blocks of a placed model differ."""
    if _are_unlike(plan):
        yield (
            "The model's blocks are of two kinds, and each GPU of the device map is counted with their average: the "
            "range allows for the difference. A traced step (--method traced) has each block where it is."
        )


def _are_unlike(plan: Plan) -> bool:
    """Return True for a prompt over several GPUs through blocks of two kinds."""
    placement, arch = plan.placement, plan.arch
    if placement is None or len(placement.gpus) < 2 or plan.job.job.training.mode == "train" or arch is None:
        return False
    return bool(arch.encoder_layers and arch.decoder_layers) or bool(arch.moe_layers and arch.dense_layers)
