"""Is there room on the GPUs: a bound that is quick and sure, and the whole verdict."""

from dataclasses import replace

import msgspec

from vramtop.estimator.budget import Budget
from vramtop.estimator.errors import CancelledError
from vramtop.estimator.job import Job, Parallel
from vramtop.estimator.shape_inventory import UNKNOWN_FAMILY_ERROR
from vramtop.estimator.sizes import format_gib
from vramtop.estimator.states import shards
from vramtop.estimator.widths import read_widths

from ..fit import fit
from .check import Check, Outcome
from .context import Context

_BITS = {"nf4": 4, "nf4-double": 4, "int8": 8}
_CONSTANTS_BYTES = 0.1
"""Per quantized weight, for its block's constants and for what is not quantized."""


class LowerBound(Check):
    """The base weights alone, and what every CUDA process takes."""

    name = "VRAM lower bound"

    def look(self, context: Context) -> Outcome:
        """Failing it means running out of memory; passing it promises nothing."""
        budget, rooms = context.quick(), context.machine.rooms
        need, words = lower_bound(budget)
        if not rooms:
            return self.skips(f"{words}; there is no GPU to hold it against")
        ranks, pipeline = budget.job.parallel.world_size, budget.job.parallel.pipeline
        free = sorted((room.available_bytes for room in rooms if room.available_bytes is not None), reverse=True)
        if len(free) < len(rooms) or not free:
            return self.cannot_tell(f"{words}; how much is free is not known")
        # stages differ, and the fullest takes no less than their mean
        room = free[0] if pipeline > 1 else free[min(ranks, len(free)) - 1]
        where = "the roomiest GPU" if ranks == 1 or pipeline > 1 else f"the last of {min(ranks, len(free))} GPUs"
        found = f"{words}; {where} has {format_gib(room)} GiB"
        if need > room:
            return self.fails(f"{found}: it will run out of memory", "quantize, shard over more GPUs, or free memory")
        return self.passes(f"{found} (which alone promises nothing: see the verdict)")


class FitVerdict(Check):
    """The whole budget against what the GPUs can give."""

    name = "VRAM verdict"
    decisive = True
    seconds = 120

    def look(self, context: Context) -> Outcome:
        """As ``vramtop fit`` says it."""
        rooms = context.machine.rooms
        if not rooms:
            needed = f"needs {format_gib(context.quick().peak.device_bytes)} GiB on each GPU (closed form)"
            advice = "name a machine with --gpu-type or --gpu-memory"
            return self.cannot_tell(f"{needed}; there is no GPU to hold it against", advice)
        budget, how = _deepest(context)
        if context.several_machines and not context.machine.elsewhere:
            budget, how = _of_one_machine(budget, context.local_ranks or 1), f"{how}; on this machine alone"
        found = fit(budget, rooms)
        words = f"{found.sentence} ({how})"
        match found.verdict:
            case "fits":
                return self.passes(words)
            case "tight":
                return self.warns(words, "vramtop fit says what would make it smaller")
            case "does_not_fit":
                return self.fails(words, "vramtop fit says what would make it smaller")
            case "unknown":
                return self.cannot_tell(words)


_METHODS = {"formula": "closed form", "exact": "closed form on the built model", "traced": "traced"}


def _deepest(context: Context) -> tuple[Budget, str]:
    """The deepest budget, and how it was found."""
    try:
        budget = context.budget()
    except CancelledError:
        return context.quick(), "closed form: anything deeper took too long"
    return budget, _METHODS[budget.method]


def _of_one_machine(budget: Budget, ranks: int) -> Budget:
    """So many of the job's fullest ranks."""
    parallel = Parallel(data_replicate=ranks)
    return replace(budget, job=msgspec.structs.replace(budget.job, parallel=parallel), stages=())


def lower_bound(budget: Budget) -> tuple[int, str]:
    """What a rank takes at the very least, and what that is, in words.

    Parameters times the bytes of a base weight (two in 16 bits, four in fp32, bits / 8 + 0.1 where it is quantized),
    over the ranks that share them; where the budget has fewer bytes of weights, those. And the CUDA context.
    """
    job, facts = budget.job, budget.model
    width = _width(job)
    parameters = facts.parameters
    if facts.count == "approximate":
        parameters = round(parameters / (1 + UNKNOWN_FAMILY_ERROR[1]))
    split = shards(job).weights * job.parallel.tensor * job.parallel.pipeline * job.parallel.expert
    loading = budget.phase("loading")
    weights = min(round(parameters * width / split), loading.components.weights if loading else 0)
    context = budget.peak.components.context
    share = f" over {split} ranks" if split > 1 else ""
    words = f"{facts.parameters:,} parameters x {width:g} bytes{share} and the CUDA context take"
    return weights + context, f"{words} {format_gib(weights + context)} GiB at least"


def _width(job: Job) -> float:
    """Bytes of a base weight."""
    if job.lora and job.lora.quantization != "none":
        return _BITS[job.lora.quantization] / 8 + _CONSTANTS_BYTES
    return read_widths(job).weight
