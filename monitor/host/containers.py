"""Slurm job, Kubernetes pod or container that a process runs in, from its cgroup and its environment."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from .kernel_files import file_text


def container_root(pid: int) -> Path | None:
    """Return the root folder of a process in another mount namespace, as it is reached from here; None: it is ours."""
    try:
        theirs = Path(f"/proc/{pid}/ns/mnt").readlink()
        ours = Path("/proc/self/ns/mnt").readlink()
    except OSError:
        return None
    return None if theirs == ours else Path(f"/proc/{pid}/root")


def container_info(pid: int, environ: Mapping[str, str] | None) -> tuple[str, ...]:
    """Return descriptions, outermost first: ``Slurm job 4711 step 0 (sft-llama)``, ``pod 12ab...``.

    Args:
        pid: of the process.
        environ: its environment; None: hidden.

    Returns:
        An empty tuple if it runs directly on the machine.
    """
    cgroup = file_text(Path(f"/proc/{pid}/cgroup"))
    return (*_slurm_job(cgroup, environ or {}), *_container(cgroup, environ or {}))


_SLURM = re.compile(r"/job_(\d+)(?:/step_([^/\s]+))?")


def _slurm_job(cgroup: str, environ: Mapping[str, str]) -> list[str]:
    found = _SLURM.search(cgroup) if "slurm" in cgroup else None
    number = found[1] if found else environ.get("SLURM_JOB_ID")
    if not number:
        return []
    step = f" step {found[2]}" if found and found[2] else ""
    name = environ.get("SLURM_JOB_NAME")
    return [f"Slurm job {number}{step}{f' ({name})' if name else ''}"]


_CONTAINERS = (
    ("pod", re.compile(r"kubepods[^ ]*?pod([0-9a-f]{8}[-_][0-9a-f_-]{27})")),
    ("Docker container", re.compile(r"/docker[-/]([0-9a-f]{12})[0-9a-f]{52}")),
    ("Podman container", re.compile(r"/libpod-([0-9a-f]{12})[0-9a-f]{52}")),
    ("container", re.compile(r"/(?:cri-containerd-|crio-)([0-9a-f]{12})[0-9a-f]{52}")),
)
"""Kinds of containers with the pattern of their cgroups, in order of preference."""


def _container(cgroup: str, environ: Mapping[str, str]) -> list[str]:
    for kind, pattern in _CONTAINERS:
        if found := pattern.search(cgroup):
            number = found[1].replace("_", "-")
            # a pod's host name is its own name, unless it uses the node's network
            name = _pod_name(number) or environ.get("HOSTNAME") if kind == "pod" else None
            return [f"{kind} {name or number}"]
    return []


_POD_LOGS = Path("/var/log/pods")
"""On the node: a folder ``NAMESPACE_NAME_UID`` for each pod (kubelet, ``BuildPodLogsDirectory``)."""


def _pod_name(uid: str) -> str | None:
    """Return the pod of an id as ``NAMESPACE/NAME``; None: this is not its node, or its folder may not be read."""
    try:
        with os.scandir(_POD_LOGS) as folders:
            found = next((folder.name for folder in folders if folder.name.endswith(f"_{uid}")), None)
    except OSError:
        return None
    namespace, _, name = found.removesuffix(f"_{uid}").partition("_") if found else ("", "", "")
    return f"{namespace}/{name}" if namespace and name else None
