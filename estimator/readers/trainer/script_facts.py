"""Facts about what a script does to its models: a changed config, frozen parameters, models beside the trained one."""

import os
from collections.abc import Mapping
from typing import Any

from ...job.rules import DTYPE_NAMES
from ..program import Program
from ..source import Finding, FindingCollector, LayeredSettings, as_word, default_setting, transformers_defaults
from .model_facts import known_config, stored_dtype


def config_of_script(settings: LayeredSettings, findings: FindingCollector) -> Mapping[str, Any] | None:
    """Return the config that a script makes or changes, and record ``model.config``; None if it does neither."""
    made = settings.find("script_model_config")
    if made is None or not isinstance(made.value, Mapping):
        return None
    findings.record("model.config", dict(made.value), made.origin)
    return made.value


def read_trainable(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record which parameters train, the sequences of an example, and whether the loop keeps the model's outputs."""
    kept = settings.find("script_keeps_outputs")
    if kept is not None:
        findings.record_from(kept, "training.keep_outputs", True)
    patterns = settings.find("script_trainable")
    if patterns is not None:
        findings.record_from(patterns, "training.trainable", patterns.value)
    sequences = settings.find("script_sequences")
    if sequences is not None:
        findings.record("training.sequences_per_example", sequences.value, sequences.origin, written=False)
    count = settings.find("script_trainable_parameters")
    if count is not None:
        findings.record_from(count, "training.trainable_parameters", count.value)


def models_of_script(settings: LayeredSettings, program: Program) -> list[tuple[dict[str, Any], str]]:
    """Return the models that a script holds beside the trained one; transformers' default decides their dtype."""
    given = settings.find("script_other_models")
    if given is None or not isinstance(given.value, list):
        return []
    trained = program.findings.get("model.id")
    return [(_complete(dict(entry), trained, program), given.origin) for entry in given.value]


def _complete(entry: dict[str, Any], trained: Finding | None, program: Program) -> dict[str, Any]:
    if "id" in entry:
        folder = program.filesystem.resolve(str(entry["id"]))
        entry["id"] = str(folder) if os.access(folder / "config.json", os.F_OK) else entry["id"]
    if entry.get("dtype") == "auto":
        word = as_word(transformers_defaults(program.versions)["dtype"]) or ""
        if word == "auto":
            model = default_setting(entry["id"], "the script") if "id" in entry else trained
            stored = stored_dtype(known_config(model, program.environ, folders=program.pid is None))
            word = as_word(stored) or "bfloat16"
        entry["dtype"] = DTYPE_NAMES.get(word, "fp32")
    return entry
