"""Evidence for a job: every value with the place it was read from, what is missing, and what is uncertain."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from ...common.errors import InputError
from ...common.records import replace
from ...job.job import Job
from ...job.job_file.changes import ABOUT_THE_MODEL, job_differences, with_changes, with_old_model_removed
from ...job.rules.optimizers.by_name import OptimizerChoice
from ...job.settings import UncertaintyDirection
from .settings import Setting, as_float, as_int, refusal

GIVEN = "you, instead of the value that was read"
"""The origin of settings that the user gives."""
REQUIRED_KEYS = ("model.id", "training.micro_batch", "training.sequence_length")
"""Job keys without which an estimate would be about another job."""
Component = Literal["weights", "gradients", "optimizer", "activations", "logits", "communication"]
MODEL_STATES: tuple[Component, ...] = ("weights", "gradients", "optimizer")
ACCUMULATION = "training.gradient_accumulation"
_TABLES = (
    *("name", "model", "training", "lora", "inference", "rollout", "parallel", "zero", "saving", "target"),
    *("software", "run", "other_models"),
)
"""The tables of a job file, in its order."""


class _JobKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file ``job_keys.toml``."""

    decides: Mapping[str, tuple[Component, ...]]
    meanings: Mapping[str, str]


_KEYS = msgspec.toml.decode(Path(__file__).with_name("job_keys.toml").read_bytes(), type=_JobKeys)


def decided_parts(key: str | None) -> tuple[Component, ...]:
    """Return the components that a job key decides; all of them for a doubt that is of no key, or of the model."""
    return _KEYS.decides.get(key or "", get_args(Component))


VERSION_NOT_KNOWN = "not known; "
"""Begins the origin of a library's version that is assumed, before the reason."""
_DATA_RANKS = ("parallel.data_shard", "parallel.data_replicate")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a job and where it was read."""

    key: str
    """Dotted job key, such as ``training.micro_batch``."""
    value: Any
    origin: str
    """For people: ``--max_length on the command line``, ``sft.yaml: bf16``, ``default of transformers 5.2.0``."""
    written: bool
    """False for a default or an inference, which the user did not write."""

    @property
    def value_text(self) -> str:
        """The value for people; a model's config is named by its type, other models by their roles."""
        if isinstance(self.value, Mapping):
            return f"config of a {self.value.get('model_type', 'model')}"
        if isinstance(self.value, list | tuple):
            return ", ".join(_model_text(each) if isinstance(each, Mapping) else str(each) for each in self.value)
        return str(self.value)


class Uncertainty(msgspec.Struct, frozen=True, kw_only=True):
    """A component of the budget that may need less or more memory than the job's settings make it need."""

    component: Component
    direction: UncertaintyDirection
    unless: str | None
    """A job key; giving its value removes the uncertainty."""


class GlobalBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Sequences per optimizer step over all ranks, where the user wrote that instead of the accumulation steps."""

    sequences: int
    origin: str
    written: bool
    rounds_up: bool
    """True: a remainder adds an accumulation step; False: it is dropped."""

    def accumulation_steps(self, sequences_per_step: int) -> int:
        """Return the accumulation steps when each of them processes that many sequences over all ranks."""
        steps, remainder = divmod(self.sequences, sequences_per_step)
        return max(1, steps + 1 if remainder and self.rounds_up else steps)


class DeviceChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs that a job chooses for itself when it is started."""

    origin: str
    """Where: ``CUDA_VISIBLE_DEVICES in the launch line``, ``--gpu_ids of accelerate``."""
    text: str
    """The choice as it is written."""
    visible: str | None = None
    """What CUDA_VISIBLE_DEVICES is for the program; None: nothing sets it, or the value is not known."""
    excluded: str | None = None
    """The GPUs that the program does not get, of all."""
    container: str | None = None
    """The GPUs that its container is given, as NVIDIA_VISIBLE_DEVICES names them; CUDA numbers these from 0."""
    index: int | None = None
    """The position of the GPU that the program uses among those that it sees; None: any."""

    @property
    def is_known(self) -> bool:
        """False if only the start of the job decides which GPUs these are."""
        return any(each is not None for each in (self.visible, self.excluded, self.container, self.index))


class JobReading(msgspec.Struct, frozen=True, kw_only=True):
    """A job as far as it could be read."""

    findings: tuple[Finding, ...]
    """One per key, in the order of the job file."""
    missing: tuple[str, ...]
    """Keys that matter and were not found; the user has to give them."""
    warnings: tuple[str, ...]
    """What was not understood or cannot be counted, one sentence each."""
    uncertainties: tuple[Uncertainty, ...] = ()
    """Components that may differ; they widen the estimate's range."""
    global_batch: GlobalBatch | None = None
    refused: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Missing keys for which something is written that makes no sense, each with a sentence on what and where."""
    devices: DeviceChoice | None = None
    """The GPUs that the launch line or the script chooses; None: the job takes those of its environment."""
    spreads_layers: str | None = None
    """The device map by which its one process spreads the layers over all GPUs that it finds; None: it does not."""
    one_per_gpu: str | None = None
    """The warning that one process is counted, and one for each GPU will start; None: their number is known."""
    more_gpus: str | None = None
    """What more GPUs than processes mean for it, in a sentence with their number as ``{gpus}``; None: nothing."""
    splits_batches: bool = False
    """It is one process of transformers' Trainer, which splits its batches over all GPUs that it finds."""
    older: "JobReading | None" = None
    """The job as it is read with older libraries, where their versions are not known; None: they are."""
    script: str | None = None
    """Name of the user's script in which the settings were read without running it; None: in none."""
    left_open: tuple[str, ...] = ()
    """Lines of the script on which anything may depend, and what is not known there, one sentence each."""

    def evidence(self) -> dict[str, str]:
        """Return where each value was read, by key."""
        return {finding.key: finding.origin for finding in self.findings}

    def assumed_versions(self) -> dict[str, str]:
        """Return the libraries' versions that are assumed, each with its reason, by key."""
        found = [each for each in self.findings if each.origin.startswith(VERSION_NOT_KNOWN)]
        return {
            each.key: f"{each.key.rpartition('.')[2]} {each.value} ({each.origin.removeprefix(VERSION_NOT_KNOWN)})"
            for each in found
        }

    def value(self, key: str) -> Any:
        """Return the value found for a key, or None."""
        return next((finding.value for finding in self.findings if finding.key == key), None)

    def job(self, overrides: Mapping[str, Any] | None = None) -> Job:
        """Return the job: the findings, changed by the user's overrides (dotted keys), on the job file's defaults.

        Raises:
            InputError: an override has an unknown key or a wrong value.
        """
        job = self._job(overrides)
        if self.older is None or any(key.startswith("software.") for key in overrides or ()):
            return job
        try:
            differences = job_differences(job, self.older._job(overrides))
        except InputError:  # the older libraries cannot be told what the newest are
            return job
        older = {key: value for key, value in differences.items() if not key.startswith("unsure")}
        return with_changes(job, {"unsure.older": older}, where="what was read")

    def _job(self, overrides: Mapping[str, Any] | None) -> Job:
        found = {finding.key: finding.value for finding in self.findings} | self._unsure_keys(overrides or {})
        if self.script is not None:
            found["unsure.script"] = self.script
        read = with_changes(Job(), found, where="what was read")
        overrides = with_old_model_removed(read, overrides or {})
        job = with_changes(read, overrides, where="your changes")
        if self.global_batch is None or ACCUMULATION in overrides:
            return job
        steps = self.global_batch.accumulation_steps(job.training.micro_batch * job.parallel.data_ranks)
        return with_changes(job, {ACCUMULATION: steps}, where=self.global_batch.origin)

    def still_missing(self, overrides: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        """Return the keys that the user's overrides leave missing; ``model.config`` stands in for ``model.id``."""
        given = set(overrides or {})
        if "model.config" in given:
            given.add("model.id")
        return tuple(key for key in self.missing if key not in given)

    def _unsure_keys(self, overrides: Mapping[str, Any]) -> dict[str, UncertaintyDirection]:
        """Return the job file's ``[unsure]`` keys; opposite directions for one component make ``either``."""
        directions: dict[str, UncertaintyDirection] = {}
        for each in self.uncertainties:
            if each.unless is None or each.unless not in overrides:
                key = f"unsure.{each.component}"
                same = directions.get(key, each.direction) == each.direction
                directions[key] = each.direction if same else "either"
        return directions


def _model_text(table: Mapping[str, Any]) -> str:
    """Return an entry of ``other_models`` for people: ``reward model Qwen/Qwen2.5-0.5B``."""
    return f"{table.get('role', 'other')} model {table.get('id') or ''}".rstrip()


class FindingCollector:
    """Collects findings, warnings and uncertainties while a job is read.

    The first finding of a key stays, so the best source has to be read first.

    Args:
        given: what the user gives in place of what is read, which needs no warning then. Another model also decides
            what is read: all that follows from a model follows from this one; what is about the old one is left out.
    """

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self._overridden = frozenset(given or ())
        self._given = {key: value for key, value in (given or {}).items() if key in ("model.id", "model.config")}
        self._findings: dict[str, Finding] = {
            key: Finding(key=key, value=value, origin=GIVEN, written=True) for key, value in self._given.items()
        }
        self._warnings: list[str] = []
        self._required = list(REQUIRED_KEYS)
        self._uncertainties: dict[Uncertainty, None] = {}
        self._global_batch: GlobalBatch | None = None
        self._refused: dict[str, str] = {}
        self._refused_ranks: str | None = None
        self.devices: DeviceChoice | None = None
        self.script: str | None = None
        self.left_open: list[str] = []
        """Sentences on lines of the script on which anything may depend."""
        self.spreads_layers: str | None = None
        self.one_per_gpu: str | None = None
        self.more_gpus: str | None = None
        self.splits_batches = False
        self.older_versions: dict[str, str] = {}
        """Versions that the program may run with, of libraries whose versions are not known."""

    def record(self, key: str, value: Any, origin: str, *, written: bool = True) -> None:
        """Record a value, unless the key has one already, or what was written for it makes no sense."""
        if self.replaces_model and key in ABOUT_THE_MODEL:
            self._leave_out(key)
            if key == "model.id" and value not in self._given.values():
                self.warn(f"{origin} is {value}; the model that you gave is counted instead.")
        elif key not in self._refused:
            self._findings.setdefault(key, Finding(key=key, value=value, origin=origin, written=written))

    def infer(self, key: str, value: Any, origin: str) -> None:
        """Record a value that the user did not write: a default or an inference."""
        self.record(key, value, origin, written=False)

    def lower(self, key: str, most: int, origin: str) -> None:
        """Cap an inferred number, such as a bound, at the largest possible value; a number that was written stays."""
        found = self._findings.get(key)
        if found is not None and not found.written and found.value > most:
            self._findings[key] = replace(found, value=most, origin=origin)

    def record_count(self, key: str, setting: Setting | None) -> None:
        """Record a whole number of at least 1; refuse any other value."""
        if setting is None:
            return
        number = as_int(setting)
        if number is None:
            self.refuse(key, setting)
        else:
            self.record_from(setting, key, number)

    def record_dropout(self, setting: Setting | None) -> None:
        """Record the dropout of adapters, where a setting says it."""
        rate = as_float(setting)
        if setting is not None and rate is not None and 0 <= rate < 1:
            self.record_from(setting, "lora.dropout", rate)

    def refuse(self, key: str, setting: Setting, what: str = "") -> None:
        """Record that what is written for a key makes no sense: no default replaces it, the user has to give it.

        Args:
            key: the job key; nothing happens if it is found already.
            setting: the value, and where it was written.
            what: what it should have been; by default the key's meaning.
        """
        if key not in self._findings and key not in self._overridden:
            meaning = what or _KEYS.meanings.get(key) or f"number of {key.rpartition('.')[2].replace('_', ' ')} ranks"
            self._refused.setdefault(key, refusal(setting, meaning))
            self.warn(f"{self._refused[key]}.")
            self.require(key)

    def refuse_ranks(self, sentence: str) -> None:
        """Record that the number of ranks that is written makes no sense, as a sentence without a full stop says."""
        self._refused_ranks = sentence
        self.warn(f"{sentence}.")

    @property
    def replaces_model(self) -> bool:
        """True if the user gives another model than the one that is read."""
        return bool(self._given)

    def _leave_out(self, key: str) -> None:
        """Leave out what is about the old model; which of its parameters train is not known of the new one."""
        trainable = {"training.trainable", "training.trainable_parameters"}
        if key in trainable and not trainable & self._overridden:
            self.warn("The trained parameters were read for another model: all parameters of this one are counted.")
            self.add_uncertainty("less", "gradients", "optimizer", unless="training.trainable")

    def record_from(self, setting: Setting | None, key: str, value: Any) -> None:
        """Record a value that follows from a setting, with the setting's origin; nothing without either."""
        if setting is not None and value is not None:
            self.record(key, value, setting.origin, written=setting.written)

    def record_global_batch(self, setting: Setting | None, *, rounds_up: bool = False) -> None:
        """Record the sequences per optimizer step over all ranks, from which the accumulation steps follow."""
        if setting is None or setting.value is None:
            return
        if (sequences := as_int(setting)) is None:
            self.refuse(ACCUMULATION, setting, "batch size of all ranks")
            return
        self._global_batch = GlobalBatch(
            sequences=sequences, origin=setting.origin, written=setting.written, rounds_up=rounds_up
        )

    def record_optimizer(self, setting: Setting, choice: OptimizerChoice) -> None:
        """Record the optimizer that a setting names, with its options and what is uncertain about it."""
        name = "training.optimizer"
        if name in self._findings:
            return
        self.record_from(setting, name, choice.name)
        if choice.options:
            self.record_from(setting, f"{name}_options", dict(choice.options))
        if choice.in_backward:
            self.record_from(setting, "training.optimizer_in_backward", True)
        if choice.sentence is not None and not choice.known:  # its own range is wide
            self.warn(f"{setting.origin}: {choice.sentence}; the range allows for what optimizers take.", unless=name)
        elif choice.sentence is not None:
            self.mark_uncertain(name, f"{setting.origin}: {choice.sentence}.", direction=choice.direction)

    def warn(self, *sentences: str, unless: str | None = None) -> None:
        """Record sentences for the user, each once; none if the user gives the key ``unless``."""
        if unless in self._overridden or (unless in ABOUT_THE_MODEL and self.replaces_model):
            return
        self._warnings += [sentence for sentence in sentences if sentence not in self._warnings]

    def require(self, key: str) -> None:
        """Ask the user for a key, unless it is found."""
        self._required.append(key)

    def add_uncertainty(
        self, direction: UncertaintyDirection, *components: Component, unless: str | None = None
    ) -> None:
        """Record components that need ``less``, ``more`` or ``either``, unless the user gives the key ``unless``."""
        for component in components if unless not in self._overridden else ():
            self._uncertainties[Uncertainty(component=component, direction=direction, unless=unless)] = None

    def doubt(
        self, sentence: str, direction: UncertaintyDirection, *components: Component, unless: str | None = None
    ) -> None:
        """Warn of components that may need ``less``, ``more`` or ``either``, until the user gives the key."""
        self.warn(sentence, unless=unless)
        self.add_uncertainty(direction, *components, unless=unless)

    def release(self, key: str) -> None:
        """Ask for a key no longer: the program has no such thing."""
        self._required = [each for each in self._required if each != key]

    def mark_uncertain(self, key: str, sentence: str, *, direction: UncertaintyDirection = "either") -> None:
        """Warn that a key's value is uncertain, and with it the components it decides, until the user gives it."""
        self.doubt(sentence, direction, *_KEYS.decides.get(key, (*MODEL_STATES, "activations")), unless=key)

    def lacks(self, key: str) -> bool:
        """Return True if a key is asked for that was neither read nor given, nor has a value that makes no sense."""
        return key in self._required and not {key} & {*self._findings, *self._overridden, *self._refused}

    def get(self, key: str) -> Finding | None:
        """Return the finding of a key."""
        return self._findings.get(key)

    def build(self) -> JobReading:
        """Return everything as a reading; required keys without a finding are missing."""
        refused = dict(self._refused)
        if self._refused_ranks is not None:
            if not {*self._findings, *self._required} & set(_DATA_RANKS):
                self.require(_DATA_RANKS[1])
            refused |= dict.fromkeys(_DATA_RANKS, self._refused_ranks)
        self._findings |= {finding.key: finding for finding in self._accumulation()}
        findings = sorted(self._findings.values(), key=lambda finding: _TABLES.index(finding.key.partition(".")[0]))
        known = {*self._findings, *(["model.id"] if "model.config" in self._findings else [])}
        return JobReading(
            findings=tuple(findings),
            missing=tuple(key for key in dict.fromkeys(self._required) if key not in known),
            warnings=tuple(self._warnings),
            uncertainties=tuple(self._uncertainties),
            global_batch=self._global_batch,
            refused={key: sentence for key, sentence in refused.items() if key not in self._findings},
            devices=self.devices,
            spreads_layers=self.spreads_layers,
            one_per_gpu=self.one_per_gpu,
            more_gpus=self.more_gpus,
            splits_batches=self.splits_batches,
            script=self.script,
            left_open=tuple(self.left_open),
        )

    def _accumulation(self) -> Iterator[Finding]:
        """Yield the accumulation steps that follow from the global batch, if the number of ranks is known."""
        total, micro = self._global_batch, self.get("training.micro_batch")
        shard, copies = self.get("parallel.data_shard"), self.get("parallel.data_replicate")
        unknown_ranks = set(_DATA_RANKS) & set(self._required) - set(self._findings)
        if total is None or micro is None or unknown_ranks or ACCUMULATION in self._refused:
            return
        ranks = (shard.value if shard else 1) * (copies.value if copies else 1)
        steps = total.accumulation_steps(micro.value * ranks)
        origin = f"{total.origin}, over micro-batch and data-parallel ranks"
        yield Finding(key=ACCUMULATION, value=steps, origin=origin, written=total.written)
