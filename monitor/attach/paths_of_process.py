"""A reading with the paths that its process sees, not those by which we reach them (``/proc/PID/root/...``)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from vramtop.estimator.readers.source import JobReading


def reaches_into(path: str, pid: int, root: Path | None) -> bool:
    """Return True for a path by which we reach a file of a process that has another root, or a hidden folder."""
    return path.startswith(_prefixes(pid, root))


def as_process_sees(reading: JobReading, pid: int, root: Path | None) -> JobReading:
    """Return the reading with its values, evidence and warnings as the process sees them.

    Args:
        reading: values that have to be opened from here must have been read before.
        pid: the process.
        root: its root folder as it is reached from here; None: ours.
    """

    def seen(value: Any) -> Any:
        if isinstance(value, str):
            for prefix in _prefixes(pid, root):
                value = value.replace(prefix, "" if prefix.endswith("/cwd/") else "/")
            return value
        if isinstance(value, list | tuple):
            return [seen(item) for item in value]
        return {key: seen(item) for key, item in value.items()} if isinstance(value, dict) else value

    findings = tuple(replace(each, value=seen(each.value), origin=seen(each.origin)) for each in reading.findings)
    batch = reading.global_batch
    return replace(
        reading,
        findings=findings,
        warnings=tuple(seen(warning) for warning in reading.warnings),
        global_batch=replace(batch, origin=seen(batch.origin)) if batch is not None else None,
    )


def _prefixes(pid: int, root: Path | None) -> tuple[str, ...]:
    cwd = f"/proc/{pid}/cwd/"
    return (cwd,) if root is None else (f"{root}{cwd}", f"{root}/", cwd)
