"""Paths, environment variables and ownership of another process, as they are reached from here."""

import os
from collections.abc import Mapping
from pathlib import Path

from vramtop.estimator.readers.source import follow_links

from ..host import namespace_pids

_ESTIMATE_VARIABLES = (
    *("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "XDG_CACHE_HOME", "HOME"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),  # not folders, but an estimate depends on them too
)


def container_root(pid: int) -> Path | None:
    """Return the root folder of a process in another mount namespace, as it is reached from here; None: it is ours."""
    try:
        theirs = Path(f"/proc/{pid}/ns/mnt").readlink()
        ours = Path("/proc/self/ns/mnt").readlink()
    except OSError:
        return None
    return None if theirs == ours else Path(f"/proc/{pid}/root")


def path_from_here(root: Path | None, path: Path | None) -> Path | None:
    """Return a process's path as it is reached from here."""
    return path if root is None or path is None else root / path.relative_to("/")


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


def pid_in_own_namespace(pid: int) -> int:
    """Return the pid that a process sees as its own: that in the innermost of its pid namespaces."""
    return (namespace_pids(pid) or (pid,))[-1]


def is_own_process(pid: int) -> bool:
    """Return True if this user started the process; another user's interpreter must never be run, least of all by root.

    All of its user ids count: a setuid program has its owner's, but command line and folder of the user who started it.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    uids = next((line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")), [])
    return set(uids) == {str(os.geteuid())}
