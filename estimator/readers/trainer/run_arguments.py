"""Reads output folders and reporting (``run.*``) from transformers' arguments."""

import json
from typing import Any

from ..source import FindingCollector, Setting, as_int
from .trainer_inputs import TrainerInputs

_NO_TARGETS = ("none", "all")
"""Values of ``report_to`` that name no library; ``all`` means whatever is installed."""


def read_run(inputs: TrainerInputs, findings: FindingCollector) -> None:
    """Record ``run.output_dir``, ``run.save_total_limit``, ``run.logging_dir``, ``run.report_to``.

    Paths become absolute, unless it is unknown from which folder the program is started.
    """
    find, filesystem = inputs.settings.find, inputs.filesystem
    for name in ("output_dir", "logging_dir"):
        folder = find(name)
        if folder is not None and isinstance(folder.value, str):
            path = folder.value if filesystem.fallback_folders else str(filesystem.resolve(folder.value))
            findings.record_from(folder, f"run.{name}", path)
    limit = find("save_total_limit")
    if limit is not None and (number := as_int(limit)) is not None:
        findings.record_from(limit, "run.save_total_limit", number)
    targets = find("report_to")
    if targets is not None and (names := _names(targets)):
        findings.record_from(targets, "run.report_to", names)


def _names(setting: Setting) -> list[str]:
    """Return names that were written as one, several with commas or spaces, or a list, perhaps as JSON text."""
    value: Any = setting.value
    if isinstance(value, str) and value.startswith("["):
        try:
            value = json.loads(value.replace("'", '"'))
        except ValueError:
            return []
    if isinstance(value, str):
        value = value.replace(",", " ").split()
    names = [str(name) for name in value] if isinstance(value, list | tuple) else []
    return [name for name in names if name not in _NO_TARGETS]
