"""Failures of memory that torch's allocator does not report: libraries on the GPU, CPU RAM, killed processes."""

import re
from dataclasses import dataclass

from .records import FailureKind

_PATTERNS: tuple[tuple[FailureKind, bool, str], ...] = (
    # the kernel, systemd, Kubernetes and Slurm name the killer
    ("killed", True, r"[Mm]emory cgroup out of memory|Out of memory: Kill(?:ed)? process \d+|invoked oom-killer"),
    ("killed", True, r"Detected \d+ oom[-_ ]kill event|task \d+[^:]{0,80}: Out Of Memory|State=OUT_OF_MEMORY"),
    ("killed", True, r"\bOOMKilled\b(?!\W{1,4}false)"),
    ("killed", True, r"oom-kill:constraint=|killed by the OOM killer|exceeded (?:step|job) memory limit"),
    # a SIGKILL without its sender
    (
        "killed",
        False,
        r"exit ?code {0,9}[:=]? {0,9}(?:-9|137)\b|return code {0,9}=? {0,9}(?:-9|137)\b|Signal 9 \(SIGKILL\)",
    ),
    ("killed", False, r"^(?:\S+: line \d+: +\d+ )?Killed(?: {2,}.*)?$|died with <Signals\.SIGKILL: 9>"),
    ("killed", False, r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:is killed by signal: Killed|exited unexpectedly)"),
    ("killed", False, r"A worker process managed by the executor was unexpectedly terminated|was killed by SIGKILL"),
    # CPU RAM
    ("host", True, r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to allocate \d+"),
    ("host", True, r"_ArrayMemoryError|^(?:numpy\.\S*)?MemoryError\b|\bstd::bad_alloc\b|Cannot allocate memory"),
    ("host", True, r"insufficient shared memory \(shm\)|cudaHostAlloc.{0,80}(?:fail|error)|\bENOMEM\b"),
    # GPU memory, asked for by others than torch's allocator
    ("gpu library", True, r"CUDA (?:driver )?error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"),
    ("gpu library", True, r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|CUSOLVER_STATUS_ALLOC_FAILED"),
    (
        "gpu library",
        True,
        r"(?:Cuda|CUDA|Hip|HIP) failure(?: \d+)? '?out of memory|Failed to CUDA (?:calloc|host alloc)",
    ),
    # torch asks NVML for the processes while it writes its message, and fails in that
    ("gpu library", True, r"NVML_SUCCESS == \w+ ?INTERNAL ASSERT FAILED at .{0,60}CUDACachingAllocator"),
    ("gpu library", True, r"OutOfMemoryError: ?(?:CUDA out of memory\.?)?\s*$|hipErrorOutOfMemory"),
)
_COMPILED = tuple((kind, sure, re.compile(pattern)) for kind, sure, pattern in _PATTERNS)
_WORDS = (
    *("memory", "Memory", "oom", "OOM", "Out Of", "Kill", "killed", "SIGKILL", "-9", "137", "_ALLOC_", "CUDA calloc"),
    *("CUDA host alloc", "bad_alloc", "ENOMEM", "CUDACachingAllocator", "DataLoader worker", "unexpectedly terminated"),
    *("cudaHostAlloc", "OUT_OF_MEMORY"),
)
"""Words of which every failure's line contains at least one; lines without any are skipped."""
_HOST_BYTES = re.compile(r"you tried to allocate (\d{1,18}) bytes|Unable to allocate (\d+(?:\.\d+)?) ([KMGT])iB")


@dataclass(frozen=True, slots=True)
class OtherFailure:
    """Kind of failure that a line reports."""

    kind: FailureKind
    sure: bool
    tried_host_bytes: int | None


def find_other_failure(line: str) -> OtherFailure | None:
    """Return the failure that a line of a log reports; None if it reports none."""
    if not any(word in line for word in _WORDS):
        return None
    for kind, sure, pattern in _COMPILED:
        if pattern.search(line):
            return OtherFailure(kind, sure, _host_bytes(line) if kind == "host" else None)
    return None


def _host_bytes(line: str) -> int | None:
    match = _HOST_BYTES.search(line)
    if match is None:
        return None
    return int(match[1]) if match[1] else round(float(match[2]) * 1024 ** ("KMGT".index(match[3]) + 1))
