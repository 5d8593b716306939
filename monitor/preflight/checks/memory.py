"""Is there room on the GPUs: a bound that is quick and sure, and the whole verdict."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.errors import CancelledError
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.job.job import Job, Parallel
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.model.count_parameters import UNKNOWN_FAMILY_ERROR

from ...fit.device_capacity import DeviceCapacity
from ...fit.fit_check import check_fit
from ...host.host_memory import host_verdict
from ..context.check import Check, CheckResult
from ..context.check_context import CheckContext
from ..context.target_gpus import target_devices

_BITS = {"nf4": 4, "nf4-double": 4, "int8": 8, "fp8": 8, "int4": 4}
_CONSTANTS_BYTES = 0.1
"""Per quantized weight, for its block's constants and for what is not quantized."""


class LowerBoundCheck(Check):
    """The base weights alone, and what every CUDA process takes."""

    name = "VRAM lower bound"
    waits_for = "the quick estimate"

    def run(self, context: CheckContext) -> CheckResult:
        """Failing it means running out of memory; passing it promises nothing."""
        need, words = rank_lower_bound(context.quick_budget())
        if not context.machine.devices:
            return self.skips(f"{words}; there is no GPU to hold it against")
        rooms = [room for room in target_devices(context) if room.available_bytes is not None]
        if not rooms:
            return self.inconclusive(f"{words}; how much is free is not known")
        rooms.sort(key=lambda room: -(room.available_bytes or 0))
        parallel = context.job.parallel
        # pipeline stages differ, and the fullest takes no less than their mean
        last = 0 if parallel.pipeline > 1 else min(context.local_ranks or parallel.world_size, len(rooms)) - 1
        room = rooms[last]
        found = f"{words}; {room.label} {room.unusable_reason or f'has {format_gib(room.available_bytes)}'}"
        if need > (room.available_bytes or 0):
            return self.fails(f"{found}: it will run out of memory", "quantize, shard over more GPUs, or free memory")
        return self.passes(f"{found} (passing this alone promises nothing)")


class FitVerdictCheck(Check):
    """The whole budget against what the GPUs can give."""

    name = "VRAM verdict"
    waits_for = "the deepest estimate to be had"
    decisive = True
    timeout_seconds = 120

    def run(self, context: CheckContext) -> CheckResult:
        """As ``vramtop fit`` says it, on the GPUs that the job will take."""
        if not context.machine.devices:
            needed = f"needs {format_gib(context.quick_budget().peak.device_bytes)} GiB on each GPU (closed form)"
            advice = "name a machine with --gpu-type or --gpu-memory"
            return self.inconclusive(f"{needed}; there is no GPU to hold it against", advice)
        budget, how = _deepest(context)
        if context.several_machines and not context.machine.is_described:
            budget, how = _of_one_machine(budget, context.local_ranks or 1), f"{how}; on this machine alone"
        found = check_fit(budget, target_devices(context))
        words = f"{found.sentence} ({how})"
        if found.verdict == "fits":
            return self.passes(words)
        advice = _advice(budget, context.machine.devices)
        if found.verdict == "tight":
            return self.warns(words, advice)
        return self.fails(words, advice) if found.verdict == "does_not_fit" else self.inconclusive(words)


def _advice(budget: Budget, rooms: Sequence[DeviceCapacity]) -> str:
    """Other GPUs of the machine, or a smaller job."""
    best = check_fit(budget, rooms)
    if best.verdict == "fits" and rooms[0].uuid is not None:
        mig = any(room.mig for room in rooms)
        names = (
            best.cuda_devices if mig else map(str, best.placement)
        )  # by index CUDA would take another one of its devices
        return f"it fits on others: CUDA_VISIBLE_DEVICES={','.join(names)}"
    return "vramtop fit says what would make it smaller"


class HostMemoryCheck(Check):
    """The machine's RAM, while the job's processes load and while they train."""

    name = "Host memory"
    waits_for = "the quick estimate"

    def run(self, context: CheckContext) -> CheckResult:
        """What does not fit the host is killed there, whatever is free on the GPUs."""
        need, room = context.quick_budget().host, context.machine.host
        if room is None:
            return self.skips("how much the machine has is not known (--host-memory)")
        if need is None:
            return self.skips("what the job takes of it is not known")
        found = host_verdict(need, room, ranks=context.local_ranks or context.job.parallel.world_size)
        advice = "load less at once (fsdp_cpu_ram_efficient_loading, ZeRO 3), offload less, or free memory"
        if found.verdict == "fits":
            return self.passes(found.sentence)
        return self.warns(found.sentence, advice) if found.verdict == "tight" else self.fails(found.sentence, advice)


_METHODS = {"formula": "closed form", "exact": "closed form on the built model", "traced": "traced"}


def _deepest(context: CheckContext) -> tuple[Budget, str]:
    """The deepest budget, and how it was found."""
    try:
        budget = context.deepest_budget()
    except CancelledError:
        return context.quick_budget(), "closed form: anything deeper took too long"
    return budget, _METHODS[budget.method]


def _of_one_machine(budget: Budget, ranks: int) -> Budget:
    """So many of the job's fullest ranks."""
    parallel = Parallel(data_replicate=ranks)
    return replace(budget, job=msgspec.structs.replace(budget.job, parallel=parallel), stages=())


def rank_lower_bound(budget: Budget) -> tuple[int, str]:
    """What a rank takes at the very least, and what that is, in words.

    Parameters times the bytes of a base weight (two in 16 bits, four in fp32, bits / 8 + 0.1 where it is quantized),
    over the ranks that share them; where the budget has fewer bytes of weights, those. And the CUDA context.
    """
    job, facts = budget.job, budget.model
    width = _width(job)
    parameters = facts.parameters
    if facts.count == "approximate":
        parameters = round(parameters / (1 + UNKNOWN_FAMILY_ERROR[1]))
    split = resolve_job(job).shards.weights * job.parallel.tensor * job.parallel.pipeline * job.parallel.expert
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
    if job.served_by_vllm and job.inference and job.inference.weights != "auto":
        return _BITS[job.inference.weights] / 8 + _CONSTANTS_BYTES
    return resolve_job(job).widths.weight
