"""The values of a job form apart from its widgets: typed and read values, their evidence, and errors."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import ABOUT_THE_MODEL, with_changes
from vramtop.estimator.job.job_file.table_fields import field_of
from vramtop.estimator.job.settings import Training
from vramtop.estimator.job.settled import preparation, quantized_adapters

from ..flags.values import LENGTH
from .fields import (
    FIELDS_THAT_HIDE_OTHERS,
    MODEL,
    PROGRAM,
    QLORA,
    TUNING,
    FieldKind,
    JobField,
    adapter_values,
    build_job,
    field_value,
    job_fields,
    make_field,
    parse_text,
    shown_fields,
    value_text,
)
from .sharding import (
    GPUS,
    SHARDING,
    SHARDING_KEYS,
    STRATEGY,
    sharding_values,
    sharding_words,
    shown_sharding,
    strategy_of,
)

_QUANTIZATION, _PREPARATION = "lora.quantization", "lora.kbit_preparation"
_CHECKPOINTING = "training.activation_checkpointing"
_TYPED_KINDS: tuple[FieldKind, ...] = ("text", "number", "share", "words")


class FieldState(msgspec.Struct):
    """What a field holds."""

    field: JobField
    value: Any
    """The last valid value; None if none was given yet."""
    text: str = ""
    """What its input shows."""
    error: str | None = None
    """Why the typed text is not valid, in one sentence."""

    def set(self, value: Any) -> None:
        """Take a valid value."""
        self.value, self.text, self.error = value, value_text(value), None


class FormState:
    """The settings of a job in a form.

    Args:
        base: the job at first; its settings without a field are kept.
        origins: where the values were read, by key; None: the job was not read.
        missing: keys that are empty until the user fills them in.
    """

    def __init__(self, base: Job, *, origins: Mapping[str, str] | None, missing: Sequence[str]) -> None:
        self.usual_gpus = 1
        """GPUs that a job is split over when the user chooses a kind of sharding."""
        self._base = base
        self.origins = origins
        self.missing = missing
        self._first_missing = missing
        """Settings that were missing at first: their fields stay where they are."""
        self._read_model = base.model.id
        """The model with which the values were read."""
        self.edited: frozenset[str] = frozenset()
        """Keys of the fields that the user has edited."""
        kinds = {key: field.type for key in PROGRAM if (field := field_of(key)) is not None}
        program = tuple(make_field(key, kind) for key, kind in kinds.items()) if base.program is not None else ()
        self.fields = (*program, *job_fields())
        self._states = {field.key: FieldState(field, None) for field in self.fields}
        for key, state in self._states.items():
            state.set(None if key in missing else field_value(base, key))
        words = sharding_words(self._states[STRATEGY].field.choices)
        self._views = {
            SHARDING: FieldState(JobField(key=SHARDING, label="sharding", kind="choice", choices=words), None),
            GPUS: FieldState(JobField(key=GPUS, label="GPUs", kind="number"), None),
        }
        self._show_sharding()

    def __getitem__(self, key: str) -> FieldState:
        return self._views.get(key) or self._states[key]

    @property
    def job(self) -> Job | None:
        """The job of the form; None while a field is not valid or a missing setting is empty."""
        if self.problem is not None:
            return None
        job = build_job(self._base, self.values)
        if self._states[TUNING].value != QLORA or TUNING not in self.edited or job.lora is None:
            return job
        prepared = preparation(job).get(_PREPARATION)
        return (
            job
            if prepared is None or job.lora.kbit_preparation is not None
            else with_changes(job, {_PREPARATION: prepared})
        )

    @property
    def values(self) -> dict[str, Any]:
        """The valid values by job key; None for what is optional and empty."""
        states = self._states.items()
        return {key: state.value for key, state in states if state.value is not None or state.field.optional}

    @property
    def problem(self) -> str | None:
        """Why there is no job, in one sentence; None if there is one."""
        for state in (*self._states.values(), *self._views.values()):
            if state.error:
                return state.error
            if state.value is None and state.field.key in self.missing:
                return f"{state.field.label} is missing; fill it in"
        return None

    @property
    def model(self) -> str | None:
        """The model's name; None while its field is empty or not valid."""
        state = self._states[MODEL]
        return None if state.error else state.value

    @property
    def names_another_model(self) -> bool:
        """True if the user has given another model than the one with which the values were read."""
        return bool(self._states[MODEL].value != self._read_model)

    def edits(self) -> dict[str, Any]:
        """Return the user's valid edits by job key; what the user has emptied or removed, such as ``lora``, is None."""
        valid = [self._states[key] for key in self.edited if not self._states[key].error]
        edits = {each.field.key: each.value for each in valid if each.value is not None or each.field.optional}
        adapters = adapter_values({key: each.value for key, each in self._states.items() if each.field.table == TUNING})
        if edits.pop(TUNING, None) is not None:
            edits[_QUANTIZATION] = None
        if adapters is None:
            kept = {key: value for key, value in edits.items() if not key.startswith(f"{TUNING}.")}
            return {**kept, TUNING: None} if TUNING in self.edited else kept
        if _QUANTIZATION in edits:
            edits[_QUANTIZATION] = adapters["quantization"]
        return edits

    def setting(self, key: str) -> tuple[str, Any] | None:
        """Return the job key and value that a field stands for; None while it is not valid or empty.

        All fields of adapters stand for the key ``lora``, whose value is the whole table or None.
        """
        state = self._states[key]
        if state.error or state.value is None:
            return None
        if state.field.table != TUNING:
            return key, state.value
        table = {each: other.value for each, other in self._states.items() if other.field.table == TUNING}
        return TUNING, adapter_values(table)

    def is_cleared(self, key: str) -> bool:
        """Return True if the user has emptied this field."""
        state = self._states[key]
        return state.field.kind in _TYPED_KINDS and not state.text.strip()

    def enter(self, key: str, entered: Any) -> tuple[str, ...]:
        """Take what the user typed or chose in a field, and return the job keys that it edits; the value may be wrong.

        Args:
            key: of the field.
            entered: the text of an input, the word of a choice, True or False for a flag.
        """
        state = self[key]
        if state.field.kind not in _TYPED_KINDS:
            state.set(entered)
        else:
            state.text = entered
            try:
                state.value, state.error = parse_text(state.field, entered), None
            except InputError as error:
                state.error = error.message
        changed: tuple[str, ...] = (key,)
        if key in self._views:
            changed = SHARDING_KEYS if state.error else self._take_sharding(key)
        elif key in SHARDING_KEYS:
            self._show_sharding()
        self.edited |= set(changed)
        if key == MODEL:  # clears what was said of the model before; it is there again if that is typed again
            old = self.is_about_old_model
            for each in ABOUT_THE_MODEL.keys() & self._states.keys() - self.edited:
                self._states[each].set(ABOUT_THE_MODEL[each] if old else field_value(self._base, each))
        if key in (TUNING, MODEL) and not self.origins and self._base.program is None:
            self._follow_tuning()
        return changed

    def _follow_tuning(self) -> None:
        """Set what the model and the kind of fine-tuning imply, as the flags do, in fields that are not edited."""
        from vramtop.estimator.model.find_config import find_built_in  # with the table of models
        from vramtop.estimator.model.read_architecture import max_positions
        from vramtop.estimator.readers.trainer.trained_model import default_targets

        kind, job = self._states[TUNING].value, build_job(self._base, self.values)
        implied: dict[str, Any] = {}
        # a folder's or the cache's config is on a disk, which may hang
        model = find_built_in(job.model.id) if job.model.id else None
        if model is not None:
            usual = Training().sequence_length
            implied[LENGTH] = min(usual, max_positions(model.config) or usual)
        if TUNING in self.edited:
            implied[_CHECKPOINTING] = self._base.training.activation_checkpointing
            found = default_targets(model.config if model is not None else None)
            implied["lora.targets"] = "all-linear" if found is None else found.value
            if kind == QLORA:
                implied |= quantized_adapters(replace(job, lora=None))
        for key, value in implied.items():
            if key in self._states and key not in self.edited:
                self._states[key].set(value)

    def fill(self, job: Job, edited: Collection[str] | None = None) -> None:
        """Take the settings of a job, as one edit.

        Args:
            job: the job.
            edited: the fields that count as edited by the user; None: those before, and those that change.
        """
        changed = {key for key, state in self._states.items() if state.value != field_value(job, key)}
        self._base, self.edited = job, self.edited | changed if edited is None else frozenset(edited)
        for key, state in self._states.items():
            state.set(field_value(job, key))
        self._show_sharding()

    def take_reading(
        self, job: Job, origins: Mapping[str, str], missing: Sequence[str], *, but: Collection[str]
    ) -> None:
        """Take what was read with the model that the user has given; edited fields stay as they are.

        Args:
            job: as read, with the user's edits.
            origins: where the values were read, by key.
            missing: keys that the user has to fill in.
            but: fields that are being edited, which stay too.
        """
        self._base, self.origins, self.missing, self._read_model = job, origins, missing, job.model.id
        for key, state in self._states.items():
            if key not in self.edited and key not in but:
                state.set(None if key in missing else field_value(job, key))
        self._show_sharding()

    def origin_groups(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the fields that the user has to fill in (or had to, and did), and those whose values were read.

        The choice of sharding stands for the keys of the job file.
        """
        missing = dict.fromkeys([*self.missing, *(key for key in self._first_missing if key in self.edited)])
        top = tuple(key for key in missing if key in self._states)
        keys = (*(field.key for field in self.fields), SHARDING, GPUS)
        return top, tuple(key for key in keys if key not in (*SHARDING_KEYS, *top) and self.origin(key))

    def shown_keys(self) -> set[str]:
        """Return the fields that have a meaning with these values."""
        if self._base.program is not None:
            return set(PROGRAM)
        shown = shown_fields({key: self._states[key].value for key in FIELDS_THAT_HIDE_OTHERS}, self.fields)
        return shown | {SHARDING, GPUS}

    def origin(self, key: str) -> str | None:
        """Return where a value was read; None: it was not."""
        origins = self.origins or {}
        if key in self._views:
            keys = (STRATEGY,) if key == SHARDING else SHARDING_KEYS[1:]
            return next((origins[each] for each in keys if each in origins), None)
        if key.startswith(f"{TUNING}.") and TUNING in origins:
            return origins[TUNING]
        if key == TUNING and key not in origins:
            return next((origin for read, origin in origins.items() if read.startswith(f"{TUNING}.")), None)
        return origins.get(key)

    def remark(self, key: str) -> str:
        """Return the evidence of a value, unless that was read with another model; empty: there is none."""
        origin = None if self.is_about_old_model else self.origin(key)
        return f"← {origin}" if origin else ""

    @property
    def found_title(self) -> str:
        """Heading of the values that were read."""
        return f"found for {self._read_model}" if self.is_about_old_model else "found"

    @property
    def is_about_old_model(self) -> bool:
        """True if the values were read with another model than the form names now."""
        return self._read_model is not None and self.names_another_model

    def _take_sharding(self, key: str) -> tuple[str, ...]:
        """Set the job's keys for the sharding and the GPUs that the user has chosen; return those that change.

        From one GPU, sharding goes to the usual number; several GPUs without sharding hold copies (DDP).
        """
        if key == SHARDING:
            strategy = strategy_of(self[SHARDING].value)
            before = shown_sharding(self._values_of(SHARDING_KEYS))[GPUS] or 1
            gpus = 1 if strategy == "none" else before if before > 1 else max(2, self.usual_gpus)
        else:
            strategy, gpus = self._states[STRATEGY].value or "none", self[GPUS].value
            strategy = "ddp" if strategy == "none" and gpus > 1 else strategy
        values = sharding_values(strategy, gpus)
        changed = tuple(each for each, value in values.items() if self._states[each].value != value)
        for each in changed:
            self._states[each].set(values[each])
        self._show_sharding()
        return changed or (STRATEGY,)

    def _show_sharding(self) -> None:
        for key, value in shown_sharding(self._values_of(SHARDING_KEYS)).items():
            if self._views[key].value != value or self._views[key].error:
                self._views[key].set(value)

    def _values_of(self, keys: Iterable[str]) -> dict[str, Any]:
        return {key: self._states[key].value for key in keys}
