"""In what a process runs: a Slurm job, a Kubernetes pod, a container; by its cgroup and its environment."""

import re
from collections.abc import Mapping
from pathlib import Path

_CONTAINERS = (
    ("pod", re.compile(r"kubepods[^ ]*?pod([0-9a-f]{8}[-_][0-9a-f_-]{27})")),
    ("Docker container", re.compile(r"/docker[-/]([0-9a-f]{12})[0-9a-f]{52}")),
    ("Podman container", re.compile(r"/libpod-([0-9a-f]{12})[0-9a-f]{52}")),
    ("container", re.compile(r"/(?:cri-containerd-|crio-)([0-9a-f]{12})[0-9a-f]{52}")),
)
_SLURM = re.compile(r"/job_(\d+)(?:/step_([^/\s]+))?")


def container_info(pid: int, environ: Mapping[str, str] | None) -> tuple[str, ...]:
    """In words, outermost first: ``Slurm job 4711 step 0 (sft-llama)``, ``pod 12ab...``; empty for a plain process.

    Args:
        pid: of the process.
        environ: its environment, where it may be seen.
    """
    try:
        cgroup = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        cgroup = ""
    return (*_scheduler(cgroup, environ or {}), *_container(cgroup, environ or {}))


def _scheduler(cgroup: str, environ: Mapping[str, str]) -> list[str]:
    found = _SLURM.search(cgroup) if "slurm" in cgroup else None
    number = found[1] if found else environ.get("SLURM_JOB_ID")
    if not number:
        return []
    step = f" step {found[2]}" if found and found[2] else ""
    name = environ.get("SLURM_JOB_NAME")
    return [f"Slurm job {number}{step}{f' ({name})' if name else ''}"]


def _container(cgroup: str, environ: Mapping[str, str]) -> list[str]:
    said: list[str] = []
    for what, pattern in _CONTAINERS:
        found = pattern.search(cgroup)
        if found and not (what == "container" and said):
            named = environ.get("HOSTNAME") if what == "pod" else None  # a pod's host name is its own
            said.append(f"{what} {named or found[1].replace('_', '-')}")
    return said[:1]
