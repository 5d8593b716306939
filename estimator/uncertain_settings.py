"""Wider ranges for what a job leaves open: settings without a rule, and GPUs over which batches are split."""

from collections.abc import Sequence

from .budget import Budget, Peak, Phase, Span
from .common.records import replace
from .common.sizes import size_text
from .formula.process_memory import communicator_bytes
from .job.resolved_job import resolve_job

_ERRORS = {"less": "missing", "more": "twice as large", "either": "missing or twice as large"}
_UNPACKED = {
    "fp8": "GPUs before Ada cannot compute in fp8, so transformers unpacks the weights to 16 bits on them. The range "
    "covers both; name the GPU to narrow it."
}
"""What decides whether weights stay in the format in which the checkpoint stores them."""


def widen_for_uncertainty(budget: Budget) -> Budget:
    """Return the budget with a range that allows for what its job leaves open, and a warning for each reason."""
    return _widen_for_reading(_widen_for_components(budget))


_LEAST_READ, _MOST_READ = 0.5, 1.5
"""Of 147 figures read from public scripts and without a warning, 30 were wrong; the truth of about 25 of these lay
between these shares of the figure (``docs/explanation/accuracy.md``)."""


def _widen_for_reading(budget: Budget) -> Budget:
    """Return the budget with a range that allows for what reading a script misses, and a warning."""
    if budget.job.unsure.script is None:
        return budget

    def misread(size: int) -> Span:
        return Span(round(_LEAST_READ * size), round(_MOST_READ * size))

    peak, device = budget.peak, misread(budget.peak.device_bytes)
    peak = peak.joined_with(
        replace(
            peak,
            low_bytes=device.low_bytes,
            high_bytes=device.high_bytes,
            allocated_range=misread(peak.allocated_bytes),
            reserved_range=misread(peak.reserved_bytes),
        )
    )
    warning = (
        f"{budget.job.unsure.script} was read, not run: of such figures without another warning, one in five was "
        f"wrong. So the range is at least {_LEAST_READ:.0%} to {_MOST_READ:.0%} of the figure; a rehearsal tells the "
        "exact one."
    )
    moved = max(budget.peak.low_bytes - peak.low_bytes, peak.high_bytes - budget.peak.high_bytes)
    stages = tuple(
        replace(
            stage,
            low_bytes=min(stage.low_bytes, misread(stage.device_bytes).low_bytes),
            high_bytes=max(stage.high_bytes, misread(stage.device_bytes).high_bytes),
        )
        for stage in budget.stages
    )
    return replace(
        budget,
        peak=peak,
        stages=stages,
        warnings=(*budget.warnings, warning),
        doubt=warning if moved > budget.doubt_bytes else budget.doubt,
        doubt_bytes=max(moved, budget.doubt_bytes),
    )


def _widen_for_components(budget: Budget) -> Budget:
    """Return the budget with a range that allows for the job's uncertain components, and a warning.

    An uncertain component may be missing at the peak, or exist twice: a setting without a rule can shard, offload or
    shrink its subject, or keep a second copy of it, of gradients also where a step has none. Communication may be all
    that ranks share, gathered at once. What is certain of any phase is needed all the same.
    """
    uncertain = [*budget.job.unsure.directions().items()]
    gathered, communicated = _gathered_bytes(budget) if uncertain else 0, budget.peak.components.communication
    if not communicated:  # one GPU
        uncertain = [(name, each) for name, each in uncertain if name != "communication"]
    if not uncertain:
        return budget
    less = _doubted_bytes(budget.peak, uncertain)
    kept = max((each.components.gradients for each in budget.phases), default=0)  # which the peak may be without
    doubled = replace(budget.peak.components, gradients=kept, communication=gathered)
    more = sum(getattr(doubled, name) for name, each in uncertain if each in ("more", "either"))
    # at the lower end, the peak is at least the most that the certain components of one phase take
    sums = [each.components.total_bytes - _doubted_bytes(each, uncertain) for each in budget.phases]
    certain = round(min(1.0, budget.peak.low_bytes / max(1, budget.peak.device_bytes)) * max(sums, default=0))
    outside = budget.peak.device_bytes - budget.peak.reserved_bytes
    peak = budget.peak.with_ranges(lambda span: span.moved(0, less=less, more=more).raised(certain - outside))
    peak = replace(peak, low_bytes=max(budget.peak.low_bytes - less, certain))
    stages = tuple(
        replace(stage, low_bytes=max(0, stage.low_bytes - less), high_bytes=stage.high_bytes + more)
        for stage in budget.stages
    )
    whole = dict(uncertain).get("communication") in ("more", "either") and gathered > communicated
    named = [each for each in uncertain if not (whole and each == ("communication", "more"))]
    alike = {error: [name for name, direction in named if direction == error] for error in _ERRORS}
    errors = [f"{_listed(names)} {_ERRORS[error]}" for error, names in alike.items() if names]
    errors += ["sharded weights and their gradients whole on each GPU"] if whole else []
    warning = f"Some settings are not known (see the notes), so the range allows for {'; '.join(errors)}."
    if [*uncertain] == [("weights", "more")] and budget.job.inference is not None:
        warning = _UNPACKED.get(budget.job.inference.weights, warning)
    return replace(
        budget,
        peak=peak,
        stages=stages,
        warnings=(*budget.warnings, warning),
        doubt=warning if less + more > budget.doubt_bytes else budget.doubt,
        doubt_bytes=max(less + more, budget.doubt_bytes),
    )


def _gathered_bytes(budget: Budget) -> int:
    """Return the most that communication may take: twice what it takes, or sharded weights and their gradients, whole.

    FSDP and ZeRO 3 free a block once its gradients have been reduced. Autograd hands over a weight's gradient when all
    backward passes that add to it have come by: after several forward passes, whole blocks wait for the last of them
    (torch 2.13, ``torch/csrc/autograd/engine.cpp``; of FSDP2, gradients only).
    """
    job, parts, model = resolve_job(budget.job), budget.peak.components, budget.model
    shards = job.shards.weights
    if shards == 1:
        return parts.communication
    split, width = job.parallel.tensor * job.parallel.pipeline, job.widths.compute
    weights = min(parts.weights * shards, model.parameters * width // split)
    return max(parts.communication, weights + model.trainable_parameters * width // split)


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}" if words[1:] else words[0]


def _doubted_bytes(of: Peak | Phase, uncertain: list[tuple[str, str]]) -> int:
    """Return the bytes that may be missing in a phase: those of the doubted components, and their temporary memory."""
    names = {name for name, direction in uncertain if direction in ("less", "either")}
    phase = of.phase if isinstance(of, Peak) else of.name
    if names & ({"optimizer"} if phase == "optimizer step" else {"activations"}):
        names.add("temporary")
    return sum(size for name, size in of.components.items() if name in names)


SPLITS_BATCHES = (
    "One process finds {0} GPUs: transformers' Trainer splits {0} times the batch over them (nn.DataParallel) and "
    "gathers the logits on the first"
)


def widen_for_split_batches(budget: Budget, gpus: int) -> Budget:
    """Return the budget of a Trainer's process with a range that allows for the GPUs that it finds, and a warning.

    transformers' Trainer wraps the model in ``nn.DataParallel`` where one process finds several GPUs: the first one
    holds everybody's outputs, copied by ``gather`` in fp32 at most, and a communicator of NCCL's.

    Args:
        budget: of one GPU.
        gpus: that the process finds.
    """
    if gpus < 2 or budget.job.parallel.world_size > 1 or budget.rehearsal is not None:
        return budget
    logits = max((phase.components.logits for phase in budget.phases if phase.name == "forward"), default=0)
    more = gpus * logits + communicator_bytes((gpus,))
    warning = (
        f"{SPLITS_BATCHES.format(gpus)}, up to {size_text(more)} more, for which the range allows. torchrun "
        f"--nproc_per_node {gpus} starts a process for each; CUDA_VISIBLE_DEVICES=0 leaves one."
    )
    return replace(
        budget,
        peak=budget.peak.with_ranges(lambda span: span.moved(0, more=more)),
        warnings=(*budget.warnings, warning),
        doubt=warning if more > budget.doubt_bytes else budget.doubt,
        doubt_bytes=max(more, budget.doubt_bytes),
    )
