"""The settings that the flags of a command line make together: contradictions, and what depends on several flags."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import check_value, with_changes
from vramtop.estimator.job.rules.strategies import HALF, STRATEGIES
from vramtop.estimator.job.settled import USUAL_LORA_RANK, precision_under

from .familiar import FAMILIAR_FLAGS, IGNORED_FLAGS
from .job_flags import job_flags, value_alone
from .values import (
    AMP,
    BITS,
    COMPLETION,
    FP8,
    GENERATING,
    GLOBAL_BATCH,
    LENGTH,
    METHOD,
    NODES,
    OF_INPUT,
    OF_METHOD,
    PROCESSES,
    PROMPT,
    RANDOM,
    SERVED,
    SOFT,
    SPREAD,
    TRL_BATCH,
    TUNING,
    WEIGHTS,
    attention,
    context_ranks,
    lora_targets,
    optimizer,
    precision,
    same_as,
    task,
    tokens,
)

_PRECISION, _AUTOCAST = "training.precision", "lora.autocast"
_SHARD, _REPLICATE, _STRATEGY = "parallel.data_shard", "parallel.data_replicate", "parallel.strategy"
_MICRO_BATCH, _ACCUMULATION = "training.micro_batch", "training.gradient_accumulation"
_CHECKPOINTING, _OFFLOAD = "training.activation_checkpointing", "training.activation_offload"


class FlagSettings(msgspec.Struct, frozen=True, kw_only=True):
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
    method_arguments: Mapping[str, tuple[Any, str]] = msgspec.field(default_factory=dict)
    """Arguments of its trainer by TRL's names, each with its flag."""
    inputs: Mapping[str, tuple[Any, str]] = msgspec.field(default_factory=dict)
    """Sizes of images and audio, each with its flag."""
    whole: bool = False
    """A flag asks for the training of all parameters."""

    def complete(self, job: Job) -> Job:
        """Return the job, once loaded, with the ranks, the micro-batch and the precision that flags give indirectly.

        Raises:
            InputError: the numbers do not divide, or the number of GPUs is not known.
        """
        job = self._with_ranks(job)
        if self.mixed or self.weights:
            from vramtop.estimator.model.checkpoint import weights_of
            from vramtop.estimator.model.find_config import resolve_model

            stored = weights_of(resolve_model(job.model))
            named = precision_under(job, mixed=self.mixed, weights=self.weights, stored=stored)
            changes: dict[str, Any] = {_PRECISION: named}
            if {named, self.mixed} == {"fp16", "bf16"}:
                changes["unsure.weights"] = "more"
            if job.lora is not None and self.mixed and _AUTOCAST not in self.changes:
                changes[_AUTOCAST] = True  # the Trainer's bf16
            job = with_changes(job, changes, where="the command line")
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
        if _MICRO_BATCH in self.changes:
            key, each, words = _ACCUMULATION, training.micro_batch, f"micro-batch {training.micro_batch}"
        else:
            each = training.gradient_accumulation
            key, words = _MICRO_BATCH, f"{each} accumulated"
        if whole % (each * ranks):
            raise InputError(f"a global batch of {whole} cannot be divided by {ranks} GPUs x {words}")
        return with_changes(job, {key: whole // (each * ranks)}, where="the command line")


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
    order = {flag: (at, text) for at, (flag, text) in enumerate(flags)}  # of a repeated flag the last one counts
    remarks: list[str] = []
    for flag, (_, text) in sorted(order.items(), key=lambda each: each[1][0]):
        for key, value in _read(flag, text).items():
            if key.startswith(SOFT):
                weak.setdefault(key.removeprefix(SOFT), (value, flag))
                continue
            before, before_flag = found.setdefault(key, (value, flag))
            if before != value and flag in job_flags():
                remarks.append(f"{flag} {text} replaces {before_flag}.")
                found[key] = (value, flag)
            elif before != value:
                raise _contradiction(before_flag, flag, key.rpartition(".")[2].replace("_", " "))
    if _CHECKPOINTING in found:
        weak.pop(_OFFLOAD, None)  # --unsloth offloads what its own checkpointing saves
    found = {**weak, **found}
    remarks += _version_of_fsdp(found, gpus)
    values = {key: value for key, (value, _) in found.items()}
    changes = {key: value for key, value in values.items() if _is_job_key(key)}
    arguments = {key.removeprefix(OF_METHOD): each for key, each in found.items() if key.startswith(OF_METHOD)}
    remarks += _remarks(flags)
    remarks += _check_arguments(arguments, values.get(METHOD))
    if model_alone and _asks_for_server(found):
        engine, flag = found[SERVED]
        changes |= {"training.mode": "inference", "inference.engine": engine}
        remarks.append(
            f"{flag} is {engine}'s, so vramtop assumes that it serves the model; --engine names another engine."
        )
    if changes.get("training.mode") == "inference":
        _set_format(changes, found)
    elif changes.get("inference.weights") == "int4" and (
        values.get(TUNING) == "lora" or any(key.startswith("lora.") for key in changes)
    ):
        changes["lora.quantization"] = changes.pop("inference.weights")  # AWQ or GPTQ under adapters
    if changes.get("training.mode") != "inference" and FP8 in values:
        remarks.append("--fp8 is counted as bf16 mixed precision; 8-bit copies may need more memory.")
        changes |= {"unsure.weights": "more", "unsure.activations": "less"}
        found.setdefault(AMP, ("bf16", "--fp8"))
    if PROMPT in values or COMPLETION in values:
        remarks += _set_lengths(changes, values)
    position = {flag: at for flag, (at, _) in order.items()}
    mixed, weights = _types(changes, found, position)
    _set_tuning(changes, found, position)
    remarks += _doubt_random_weights(changes, values)
    spread = found[SPREAD][1] if SPREAD in found else None
    counted = _SHARD in values or _REPLICATE in values
    processes = values[PROCESSES] * values.get(NODES, 1) if PROCESSES in values else None
    if processes is None and gpus and not counted and (spread or _STRATEGY in values):
        processes = gpus
    remarks += _placed(gpus if processes is None else None, changes, model_alone=model_alone)
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
        method_arguments=arguments,
        whole=values.get(TUNING) == "full",
        inputs={key.removeprefix(OF_INPUT): each for key, each in found.items() if key.startswith(OF_INPUT)},
    )


def _placed(gpus: int | None, changes: dict[str, Any], *, model_alone: bool) -> Iterator[str]:
    """Place the modules of one process on several GPUs if a device map is given; yield that it takes one if not."""
    if gpus is None or gpus == 1:
        return
    if "parallel.device_map" in changes:
        changes.setdefault("parallel.pipeline", gpus)
        return
    is_spread = any(key.startswith("parallel.") for key in changes)
    if model_alone and not is_spread and changes.get("training.mode") != "inference":
        yield f"The job runs on one of the {gpus} GPUs; --fsdp, --ddp or --device-map auto spreads it over them."


def _version_of_fsdp(found: dict[str, tuple[Any, str]], gpus: int | None) -> Iterator[str]:
    """Take ``--fsdp 2 --gpus 8`` for FSDP's version over as many GPUs; yield that it was."""
    count, flag = found.get(_SHARD, (0, ""))
    sizes = [key for key in found if key.startswith("parallel.") and key not in (_SHARD, _STRATEGY)]
    if flag == "--fsdp" and count in (1, 2) and gpus is not None and gpus > count and not sizes:
        del found[_SHARD]
        found[_STRATEGY] = (f"fsdp{count}", flag)
        yield f"--fsdp {count} --gpus {gpus} is taken for FSDP{count} over {gpus} GPUs."


def _is_job_key(key: str) -> bool:
    """Return True for a key of a job file, which has a table; what is made of several flags is named in words."""
    return "." in key and not key.startswith((OF_METHOD, OF_INPUT))


def _check_arguments(arguments: Mapping[str, tuple[Any, str]], method: str | None) -> Iterator[str]:
    """Yield which arguments of TRL's trainers change nothing.

    Raises:
        InputError: they ask for vLLM, and nothing that is trained generates text.
    """
    generates = method in GENERATING
    for name, (_, flag) in arguments.items():
        if name == "beta" and not generates:
            yield f"{flag}: GPU memory does not depend on it{'' if method else ' but with --grpo or --rloo'}."
        elif not generates:
            served = "; to serve the model: --engine vllm" if name == "use_vllm" else ""
            raise InputError(f"{flag} only affects completions of --grpo and --rloo; add one of them{served}")


_TRAINED = frozenset(("training.optimizer", _CHECKPOINTING, _ACCUMULATION))
"""Settings of training alone."""


def _asks_for_server(found: Mapping[str, tuple[Any, str]]) -> bool:
    """Return True if a flag is an engine's, and no other says that something is trained or which engine it is."""
    nothing: tuple[Any, str] = (None, "")
    only_bits = found.get(TUNING, nothing)[1] == found.get(BITS, nothing)[1]
    bits = found.get(BITS, nothing)[1]
    adapts = any(key.startswith("lora.") and flag != bits for key, (_, flag) in found.items())
    is_training = found.get("training.mode", nothing)[0] == "train" or bool(_TRAINED & found.keys())
    trains = METHOD in found or not only_bits or adapts or is_training
    return SERVED in found and not trains and "inference.engine" not in found


def _doubt_random_weights(changes: dict[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Allow for fp32 where weights are random and nothing gives their type; yield why."""
    if RANDOM in values and WEIGHTS not in values and _PRECISION not in changes:
        changes |= dict.fromkeys(("unsure.weights", "unsure.gradients", "unsure.optimizer"), "more")
        yield (
            "--from-scratch assumes weights in the config's dtype, as in transformers' from_config; a script that "
            "builds its own config gets fp32 (--dtype float32)."
        )


_USUAL_PART = 512
"""Tokens of a prompt or a completion where only the other one is given: a usual default of TRL's."""


def _set_lengths(changes: dict[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Set the length of a sequence from those of its prompt and its completion; yield which of them is a usual one."""
    for key, flag in ((PROMPT, "--max-prompt-length"), (COMPLETION, "--max-completion-length")):
        if key not in values and LENGTH not in changes:
            yield f"{flag}: {_USUAL_PART} tokens are assumed."
    changes.setdefault(LENGTH, values.get(PROMPT, _USUAL_PART) + values.get(COMPLETION, _USUAL_PART))
    if COMPLETION in values and values.get(METHOD) == "grpo":
        changes.setdefault("training.loss_length", values[COMPLETION])


_FAMILIAR = {name: flag for flag in FAMILIAR_FLAGS for name in flag.names}
_OTHER_NAMES = {
    "training.optimizer": optimizer,
    _PRECISION: precision,
    "model.attention": attention,
    LENGTH: tokens,
    "lora.targets": lora_targets,
    "parallel.context": context_ranks,
    "model.task": task,
}
"""Keys whose flag takes other tools' words for the values too, or refuses what is meant for another one."""


def _read(flag: str, text: str) -> Mapping[str, Any]:
    """Return what one flag sets.

    Raises:
        InputError: its value is wrong; the sentence names the flag, not the job file's key.
    """
    if flag in IGNORED_FLAGS:
        return {}
    key = job_flags().get(flag)
    reader = _OTHER_NAMES.get(key) or same_as(key) if key else _FAMILIAR[flag].settings
    try:
        settings = reader(text or (value_alone(key) or "" if key else ""))
        for name, value in settings.items():
            if _is_job_key(name.removeprefix(SOFT)):
                check_value(name.removeprefix(SOFT), value)
    except InputError as error:
        raise InputError(f"{flag}: {error.message}") from None
    return settings


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
        raise _contradiction(found[_PRECISION][1], mixed_flag or weights_flag, "precision")
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
            raise _contradiction(flag, other, TUNING)
        changes["lora"] = None
    elif tuning == "lora" and not of_lora:
        changes["lora.rank"] = USUAL_LORA_RANK


def _remarks(flags: Sequence[tuple[str, str]]) -> Iterator[str]:
    given = dict(flags)
    for flag, text in given.items():
        if flag in IGNORED_FLAGS or flag in job_flags() or text.lower() in ("false", "no", "off", "0"):
            continue
        if remark := _FAMILIAR[flag].remark:
            yield f"{flag}: {remark}"
    ignored = [flag for flag in given if flag in IGNORED_FLAGS]
    if ignored:
        yield f"{', '.join(ignored)}: GPU memory does not depend on it."


def _contradiction(one: str, other: str, about: str) -> InputError:
    return InputError(f"{one} and {other} contradict each other ({about}); give only one")


def with_method(
    job: Job,
    method: str,
    stated: Collection[str],
    changes: Mapping[str, Any],
    arguments: Mapping[str, tuple[Any, str]] = MappingProxyType({}),
) -> tuple[Job, str]:
    """Return the job with what TRL's trainer of a method holds and computes, and a note on what that is.

    Args:
        job: the job otherwise.
        method: its name.
        stated: keys that were set, which stay; but TRL's trainers have losses of their own in place of Liger-Kernel's
            for all of the logits.
        changes: what the command line sets by job key.
        arguments: of the trainer by TRL's names, each with the flag that gives it.

    Raises:
        InputError: the job trains nothing.
    """
    if job.training.mode != "train":
        raise InputError(f"--{method} is a training method, but this job only generates text; leave out one of the two")
    from vramtop.estimator.readers.trl.read_method import read_method

    batch = ""
    if method in GENERATING and "training.micro_batch" not in stated:  # which one completion alone cannot be
        job = with_changes(job, {"training.micro_batch": TRL_BATCH})
        batch = f"training.micro_batch = {TRL_BATCH} (TRL's default); "
    kept = [key for key in stated if (key, changes.get(key)) != ("training.loss", "fused-linear")]
    found = [finding for finding in read_method(method, job, arguments) if finding.key not in kept]
    read = "; ".join(f"{finding.key} = {finding.value_text} ({finding.origin})" for finding in found)
    return with_changes(job, {finding.key: finding.value for finding in found}), f"--{method}: {batch}{read}."
