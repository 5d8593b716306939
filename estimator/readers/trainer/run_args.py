"""Where a program that trains with transformers writes and reports, to the job's ``[run]`` keys."""

import json
from typing import Any

from ..source.evidence import FindingCollector
from ..source.settings import Setting, as_int
from .transformers_args import Arguments

_NO_TARGETS = ("none", "all")
"""``all``: whatever is installed, so nothing that has to be."""


def read_run(arguments: Arguments, findings: FindingCollector) -> None:
    """Put ``run.output_dir``, ``run.save_total_limit``, ``run.logging_dir``, ``run.report_to``.

    Paths become full, where it is known from which folder the program is started.
    """
    find, filesystem = arguments.settings.find, arguments.filesystem
    for name in ("output_dir", "logging_dir"):
        folder = find(name)
        if folder is not None and isinstance(folder.value, str):
            path = folder.value if filesystem.fallback_folders else str(filesystem.resolve(folder.value))
            findings.put(f"run.{name}", path, folder.origin, written=folder.written)
    limit = find("save_total_limit")
    if limit is not None and (number := as_int(limit)) is not None:
        findings.put("run.save_total_limit", number, limit.origin, written=limit.written)
    targets = find("report_to")
    if targets is not None and (names := _names(targets)):
        findings.put("run.report_to", names, targets.origin, written=targets.written)


def _names(setting: Setting) -> list[str]:
    """One name, several with commas or spaces, or a list, perhaps as JSON text."""
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
