"""The settings that the flags of a command line make together: contradictions, and what depends on several of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import check_value, parse_assignment, with_changes
from vramtop.estimator.job.resolved_job import precision_under
from vramtop.estimator.job.rules.frameworks import HALF, STRATEGIES
from vramtop.estimator.model.checkpoint import weights_of
from vramtop.estimator.model.find_config import resolve_model

from .familiar_values import (
    AMP,
    BITS,
    COMPLETION,
    FP8,
    GLOBAL_BATCH,
    LENGTH,
    METHOD,
    NODES,
    PROCESSES,
    PROMPT,
    SERVED,
    SOFT,
    SPREAD,
    TUNING,
    USUAL_LORA_RANK,
    WEIGHTS,
    attention,
    context_ranks,
    lora_targets,
    optimizer,
    precision,
    tokens,
)
from .job_flags import FAMILIAR_FLAGS, IGNORED_FLAGS, FamiliarFlag, job_flags, value_alone

_MADE_OF_SEVERAL = (
    *(AMP, BITS, COMPLETION, FP8, GLOBAL_BATCH, METHOD, NODES, PROCESSES, PROMPT, SERVED, SPREAD, TUNING, WEIGHTS),
)
_PRECISION = "training.precision"
_OTHER_NAMES = {
    "training.optimizer": optimizer,
    _PRECISION: precision,
    "model.attention": attention,
    LENGTH: tokens,
    "lora.targets": lora_targets,
    "parallel.context": context_ranks,
}
"""Keys whose flag takes other tools' words for the values too, or refuses what is meant for another one."""
_USUAL_PART = 512
"""Tokens of a prompt or a completion where only the other one is given: a usual default of TRL's."""
_SHARD, _REPLICATE, _STRATEGY = "parallel.data_shard", "parallel.data_replicate", "parallel.strategy"
_MICRO_BATCH, _ACCUMULATION = "training.micro_batch", "training.gradient_accumulation"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagSettings:
    """What the flags of a command line set."""

    changes: Mapping[str, Any]
    """New values by job key."""
    remarks: tuple[str, ...] = ()
    """How flags were understood whose meaning differs from tool to tool."""
    processes: int | None = None
    """Processes of the whole job; None: not given."""
    global_batch: int | None = None
    """Sequences of an optimizer step over all GPUs; None: not given."""
    spread_flag: str | None = None
    """The flag that names a strategy over several GPUs without a number of them; None: there is none."""
    mixed: str | None = None
    """Mixed precision (``bf16``, ``fp16``), whose effect on the weights the model decides; None: not given."""
    weights: str | None = None
    """The type in which the weights are loaded; None: not given."""
    adapts: bool = False
    """A flag asks for adapters, or for weights of few bits under them, as other tools do."""
    method: str | None = None
    """TRL's training method; None: not given."""

    def complete(self, job: Job) -> Job:
        """Return the job, once loaded, with the ranks, the micro-batch and the precision that flags give indirectly.

        Raises:
            InputError: the numbers do not divide, or the number of GPUs is not known.
        """
        job = self._with_ranks(job)
        if self.mixed or self.weights:
            stored = weights_of(resolve_model(job.model))
            named = precision_under(job, mixed=self.mixed, weights=self.weights, stored=stored)
            casts = {"unsure.weights": "more"} if {named, self.mixed} == {"fp16", "bf16"} else {}
            job = with_changes(job, {_PRECISION: named} | casts, where="the command line")
        return job if self.global_batch is None else self._with_global_batch(job, self.global_batch)

    def _with_ranks(self, job: Job) -> Job:
        if _SHARD in self.changes or (_REPLICATE in self.changes and self.spread_flag is None):
            return job
        if self.processes is None:
            if self.spread_flag and job.parallel.data_ranks == 1:
                raise InputError(f"{self.spread_flag}: give the number of GPUs with --gpus N")
            return job
        parallel = job.parallel
        within = parallel.tensor * parallel.pipeline * parallel.context
        if self.processes % within:
            raise InputError(
                f"{self.processes} GPUs cannot be split into groups of {within} "
                f"(tensor {parallel.tensor} x pipeline {parallel.pipeline} x context {parallel.context})"
            )
        ranks = self.processes // within
        name = "ddp" if parallel.strategy == "none" and ranks > 1 else parallel.strategy
        shards = STRATEGIES[name].zero_stage > 0
        copies = parallel.data_replicate if shards and _REPLICATE in self.changes else 1
        if ranks % copies:
            raise InputError(f"{ranks} data-parallel GPUs cannot be split into {copies} copies")
        sizes = {_SHARD: ranks // copies, _REPLICATE: copies} if shards else {_SHARD: 1, _REPLICATE: ranks}
        return with_changes(job, {_STRATEGY: name, **sizes}, where="the command line")

    def _with_global_batch(self, job: Job, whole: int) -> Job:
        """Divide the sequences of a step by ranks and accumulation, or by ranks and micro-batch."""
        training, ranks = job.training, job.parallel.data_ranks
        key, others, words = (
            (_ACCUMULATION, training.micro_batch * ranks, f"{ranks} GPUs x micro-batch {training.micro_batch}")
            if _MICRO_BATCH in self.changes
            else (
                _MICRO_BATCH,
                training.gradient_accumulation * ranks,
                f"{ranks} GPUs x {training.gradient_accumulation} accumulated",
            )
        )
        if whole % others:
            raise InputError(f"a global batch of {whole} cannot be divided by {words}")
        return with_changes(job, {key: whole // others}, where="the command line")


def settings_of_flags(
    flags: Sequence[tuple[str, str]], *, gpus: int | None = None, model_alone: bool = False
) -> FlagSettings:
    """Return what the flags of a command line set together.

    Args:
        flags: each as it was typed, with its value; empty where it has none.
        gpus: the value of ``--gpus``, over which a strategy is spread that names no number of GPUs.
        model_alone: they are about a model, not about a file or a launch line: an engine's flags ask for the engine.

    Raises:
        InputError: a value is wrong, or two flags contradict each other.
    """
    found: dict[str, tuple[Any, str]] = {}
    weak: dict[str, tuple[Any, str]] = {}
    order = {
        flag: (at, text) for at, (flag, text) in enumerate(flags)
    }  # of a flag that is repeated the last one counts
    remarks: list[str] = []
    for flag, (_, text) in sorted(order.items(), key=lambda each: each[1][0]):
        for key, value in _read(flag, text).items():
            if key.startswith(SOFT):
                weak.setdefault(key.removeprefix(SOFT), (value, flag))
                continue
            before = found.get(key)
            if before is not None and before[0] != value and flag in job_flags():
                remarks.append(f"{flag} {text} replaces {before[1]}.")
                found[key] = (value, flag)
            elif before is not None and before[0] != value:
                raise InputError(f"{before[1]} and {flag} contradict each other ({_words(key)}); give one of them")
            found.setdefault(key, (value, flag))
    found = {**weak, **found}
    values = {key: value for key, (value, _) in found.items()}
    changes = {key: value for key, value in values.items() if key not in _MADE_OF_SEVERAL}
    remarks += _remarks(flags)
    if model_alone and _asks_for_server(found):
        engine, flag = found[SERVED]
        changes |= {"training.mode": "inference", "inference.engine": engine}
        remarks.append(f"{flag} is {engine}'s, which is taken to serve the model; --engine names another.")
    if changes.get("training.mode") == "inference":
        _set_format(changes, found)
    elif FP8 in values:
        remarks.append("--fp8: counted as bf16 mixed precision; copies in 8 bits may add to it.")
        changes |= {"unsure.weights": "more", "unsure.activations": "less"}
        found.setdefault(AMP, ("bf16", "--fp8"))
    if PROMPT in values or COMPLETION in values:
        remarks += _set_lengths(changes, values)
    position = {flag: at for flag, (at, _) in order.items()}
    mixed, weights = _types(changes, found, position)
    _set_tuning(changes, found, position)
    spread = found[SPREAD][1] if SPREAD in found else None
    counted = _SHARD in values or _REPLICATE in values
    machines = values.get(NODES, 1)
    processes = values[PROCESSES] * machines if PROCESSES in values else None
    if processes is None and gpus and not counted and (spread or _STRATEGY in values):
        processes = gpus
    return FlagSettings(
        changes=changes,
        remarks=tuple(remarks),
        processes=None if counted else processes,
        global_batch=values.get(GLOBAL_BATCH),
        adapts=BITS in values or values.get(TUNING) == "lora",
        mixed=mixed,
        weights=weights,
        spread_flag=None if counted else spread,
        method=values.get(METHOD),
    )


def _asks_for_server(found: Mapping[str, tuple[Any, str]]) -> bool:
    """Return True if a flag is an engine's, and no other says that something is trained or which engine it is."""
    nothing: tuple[Any, str] = (None, "")
    only_bits = found.get(TUNING, nothing)[1] == found.get(BITS, nothing)[1]
    trains = METHOD in found or not only_bits or found.get("training.mode", nothing)[0] == "train"
    return SERVED in found and not trains and "inference.engine" not in found


def _set_lengths(changes: dict[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Set the length of a sequence from those of its prompt and its completion; yield which of them is a usual one."""
    for key, flag in ((PROMPT, "--max-prompt-length"), (COMPLETION, "--max-completion-length")):
        if key not in values and LENGTH not in changes:
            yield f"{flag}: {_USUAL_PART} tokens are counted."
    changes.setdefault(LENGTH, values.get(PROMPT, _USUAL_PART) + values.get(COMPLETION, _USUAL_PART))
    if COMPLETION in values and values.get(METHOD) == "grpo":
        changes.setdefault("training.loss_length", values[COMPLETION])


def _read(flag: str, text: str) -> Mapping[str, Any]:
    """Return what one flag sets.

    Raises:
        InputError: its value is wrong; the sentence names the flag, not the job file's key.
    """
    if flag in IGNORED_FLAGS:
        return {}
    try:
        settings = _settings(flag, text)
        for key, value in settings.items():
            if key.removeprefix(SOFT) not in _MADE_OF_SEVERAL:
                check_value(key.removeprefix(SOFT), value)
    except InputError as error:
        raise InputError(f"{flag}: {error.message}") from None
    return settings


def _settings(flag: str, text: str) -> Mapping[str, Any]:
    key = job_flags().get(flag)
    if key is None:
        return _familiar(flag).settings(text)
    if not text and (alone := value_alone(key)) is not None:
        text = alone
    other_names = _OTHER_NAMES.get(key)
    return other_names(text) if other_names else dict([parse_assignment(f"{key}={text}")])


def _familiar(flag: str) -> FamiliarFlag:
    return next(each for each in FAMILIAR_FLAGS if flag in each.names)


def _set_format(changes: dict[str, Any], found: dict[str, tuple[Any, str]]) -> None:
    """Set the format of the weights of a model that is not trained, in place of adapters over frozen ones."""
    bits, flag = found.get(BITS, (None, ""))
    if bits in ("4", "8"):
        stored = changes.pop("lora.quantization", "none")
        changes["inference.weights"] = stored if stored != "none" else {"4": "nf4", "8": "int8"}[bits]
        if found.get(TUNING, (None, ""))[1] == flag:
            del found[TUNING]
            for key in [key for key in changes if key.startswith("lora.")]:
                del changes[key]
    elif FP8 in found:
        changes["inference.weights"] = "fp8"


def _types(
    changes: Mapping[str, Any], found: Mapping[str, tuple[Any, str]], position: Mapping[str, int]
) -> tuple[str | None, str | None]:
    """Return mixed precision and the type of the weights, where they are given in place of ``--precision``.

    Raises:
        InputError: ``--precision`` says otherwise, and does not come after them.
    """
    (mixed, mixed_flag), (weights, weights_flag) = (found.get(key, (None, "")) for key in (AMP, WEIGHTS))
    mixed = mixed if mixed in HALF else None
    given = changes.get(_PRECISION)
    if given is None or (mixed is None and weights is None):
        return mixed, weights
    last = position[found[_PRECISION][1]] > max(position.get(mixed_flag, -1), position.get(weights_flag, -1))
    if not last and (given not in (weights, mixed, f"{mixed}-mixed") or (weights in HALF and given != weights)):
        flags = f"{found[_PRECISION][1]} and {mixed_flag or weights_flag}"
        raise InputError(f"{flags} contradict each other (precision); give one of them")
    return None, None


def _set_tuning(changes: dict[str, Any], found: Mapping[str, tuple[Any, str]], position: Mapping[str, int]) -> None:
    """Remove the adapters for full fine-tuning, and make some where only their kind is given.

    Raises:
        InputError: full fine-tuning has settings of adapters, and does not come before them.
    """
    tuning, flag = found.get(TUNING, (None, ""))
    of_lora = [key for key in changes if key.startswith("lora.")]
    if tuning == "full":
        later = [position.get(found[key][1], 0) > position[flag] for key in of_lora if key in found]
        if later and all(later):
            return
        if of_lora:
            other = next((found[key][1] for key in of_lora if key in found), "--set")
            raise InputError(f"{flag} and {other} contradict each other (kind of fine-tuning); give one of them")
        changes["lora"] = None
    elif tuning == "lora" and not of_lora:
        changes["lora.rank"] = USUAL_LORA_RANK


def _remarks(flags: Sequence[tuple[str, str]]) -> Iterator[str]:
    given = dict(flags)
    for flag, text in given.items():
        if flag in IGNORED_FLAGS or flag in job_flags() or text.lower() in ("false", "no", "off", "0"):
            continue
        if remark := _familiar(flag).remark:
            yield f"{flag}: {remark}"
    ignored = [flag for flag in given if flag in IGNORED_FLAGS]
    if ignored:
        yield f"{', '.join(ignored)}: GPU memory does not depend on it."


def _words(key: str) -> str:
    return key.rpartition(".")[2].replace("_", " ")
