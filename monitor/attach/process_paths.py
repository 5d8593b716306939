"""Paths, environment variables and a reading of another process, as they are reached from here or seen by itself."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramtop.estimator.common.records import replace
from vramtop.estimator.readers.source.evidence import JobReading
from vramtop.estimator.readers.source.filesystem_view import follow_links


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


_ESTIMATE_VARIABLES = (
    *("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "XDG_CACHE_HOME", "HOME"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),  # not folders, but an estimate depends on them too
)


def environ_from_here(environ: Mapping[str, str], root: Path | None) -> dict[str, str]:
    """Return a process's environment with the folders of its Hugging Face cache as they are reached from here."""
    if root is None:
        return {**environ, **estimate_environ(environ)}
    folders = {name: path for name, path in environ.items() if name in _ESTIMATE_VARIABLES and path.startswith("/")}
    reached = {**environ, **{name: str(follow_links(root, f"{root}{path}")) for name, path in folders.items()}}
    return {**reached, **estimate_environ(reached)}


def estimate_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an estimate depends on; the cache folder below HOME is made explicit."""
    found = {name: value for name, value in environ.items() if name in _ESTIMATE_VARIABLES}
    if "HOME" in found:
        found.setdefault("XDG_CACHE_HOME", f"{found['HOME']}/.cache")
    return found
