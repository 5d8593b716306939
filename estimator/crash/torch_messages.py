"""Torch's out-of-memory messages, in every wording since torch 1.0, as figures.

Wordings: ``c10/cuda/CUDACachingAllocator.cpp`` of torch 1.10 (``(GPU 0; ... total capacity; ... already
allocated;``, before 1.4 with ``cached``), 2.1 (``GPU 0 has a total capacty of``, spelt so), 2.2 and later
(``capacity``, private pools, other processes); ``CUDAMallocAsyncAllocator.cpp``;
``c10/xpu/XPUCachingAllocator.cpp``. ROCm says HIP in CUDA's place, torch_npu NPU.
"""

import re

from .records import OtherProcess, OutOfMemory
from .wordings import size_bytes

_SIZE = r"(\d+(?:\.\d+)? ?(?:bytes|[KMGTPE]i?B|B))"
_HEAD = re.compile(rf"\b([A-Za-z]{{2,12}}) out of memory\. Tried to allocate {_SIZE}")
_DEVICE = re.compile(r"\((?:GPU|NPU|MLU|XPU|DCU|GCU) (\d+);?")
_NEW_DEVICE = re.compile(r"\b(?:GPU|NPU|XPU) ?(\d*) has a total capac(?:i)?ty of")
_FIELDS = {
    name: re.compile(pattern)
    for name, pattern in {
        "total": rf"{_SIZE} total capacity|has a total capac(?:i)?ty of {_SIZE}",
        "free": rf"; {_SIZE} free[;)]|of which {_SIZE} is free",
        "allowed": rf"{_SIZE} allowed;",
        "allocated": rf"{_SIZE} already allocated|Of the allocated memory {_SIZE} is allocated by PyTorch",
        "reserved": rf"{_SIZE} (?:reserved in total by PyTorch|cached)",
        "unallocated": rf"{_SIZE} is reserved by PyTorch but unallocated",
        "pools": rf"with {_SIZE} allocated in private pools",
        "process": rf"this process has {_SIZE} memory in use",
    }.items()
}
_PROCESS = re.compile(rf"\bProcess (\d{{1,10}}) has {_SIZE} memory in use")
_ASYNC = re.compile(
    rf"Allocation on device (\d+) would exceed allowed memory\. \(out of memory\) ?Currently allocated ?: ?{_SIZE} ?"
    rf"Requested ?: ?{_SIZE} ?Device limit ?: ?{_SIZE} ?Free \(according to CUDA\) ?: ?{_SIZE}"
)
_END = re.compile(
    r"reserved in total by PyTorch|\d+ ?(?:[KMG]i)?B cached|reserved by PyTorch but unallocated|on \w+ pool"
)
_MAX_OTHERS = 64


def parse_message(text: str) -> OutOfMemory | None:
    """Return the figures of the first out-of-memory message in a text; None if there is none.

    Args:
        text: line breaks and indentation do not matter.
    """
    text = " ".join(text.split())
    return _allocator_message(text) or _async_message(text)


def is_complete(text: str) -> bool:
    """Return True if nothing that follows belongs to the message, as far as it has figures."""
    text = " ".join(text.split())
    return bool(_END.search(text) or _ASYNC.search(text))


def _allocator_message(text: str) -> OutOfMemory | None:
    head = _HEAD.search(text)
    if head is None:
        return None
    following = _HEAD.search(text, head.end())
    body = text[head.start() : following.start() if following else None]
    figures = {name: _field(pattern, body) for name, pattern in _FIELDS.items()}
    device = _DEVICE.search(body) or _NEW_DEVICE.search(body)
    allocated, unallocated = figures["allocated"], figures["unallocated"]
    if unallocated is None and allocated is not None and figures["reserved"] is not None:
        before_1_4 = "cached" in body and "reserved in total" not in body
        unallocated = figures["reserved"] if before_1_4 else max(0, figures["reserved"] - allocated)
    others = [
        OtherProcess(pid=int(pid), used_bytes=used)
        for pid, size in _PROCESS.findall(body)[:_MAX_OTHERS]
        if (used := size_bytes(size)) is not None
    ]
    process = figures["process"] or None  # 0 bytes: NVML could not attribute them, as in a container
    if process is None and allocated is not None and unallocated is not None:
        # in a container its pid differs from the one that the driver knows, so that torch lists it as another process
        large = [other for other in others if other.used_bytes >= allocated + unallocated]
        if len(large) == 1:
            process = large[0].used_bytes
            others.remove(large[0])
    return OutOfMemory(
        backend=head[1].upper() if len(head[1]) <= 4 else head[1],
        gpu=int(device[1]) if device and device[1] else None,
        tried_bytes=size_bytes(head[2]),
        total_bytes=figures["total"],
        free_bytes=figures["free"],
        allocated_bytes=allocated,
        unallocated_bytes=unallocated,
        private_pool_bytes=figures["pools"],
        process_bytes=process,
        allowed_bytes=figures["allowed"],
        others=tuple(others),
    )


def _async_message(text: str) -> OutOfMemory | None:
    match = _ASYNC.search(text)
    if match is None:
        return None
    return OutOfMemory(
        backend="CUDA",
        gpu=int(match[1]),
        allocated_bytes=size_bytes(match[2]),
        tried_bytes=size_bytes(match[3]),
        total_bytes=size_bytes(match[4]),
        free_bytes=size_bytes(match[5]),
    )


def _field(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    if match is None:
        return None
    return size_bytes(next(each for each in match.groups() if each is not None))
