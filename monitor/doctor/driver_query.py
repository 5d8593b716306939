"""Queries the NVIDIA driver and all of its GPUs; runs in a child process, because the driver may hang or crash."""

import threading
import time
from pathlib import Path
from typing import Any

from vramtop.estimator.common import ProcessLimitError, start_thread

from ..sources.nvml import no_driver_error
from .gpu_query import GpuQuery, SendFacts

_LIBRARY = "libnvidia-ml.so"
_VERSION_CALLS = {
    "driver_version": "nvmlSystemGetDriverVersion",
    "nvml_version": "nvmlSystemGetNVMLVersion",
    "cuda_version": "nvmlSystemGetCudaDriverVersion_v2",
}


def query_driver(send: SendFacts) -> None:
    """Make all calls and send each fact at once.

    Args:
        send: receives facts by the names of ``DriverFacts``; ``asks``, the name of the call in progress; and for facts
            about a GPU its index as ``gpu``.
    """
    send({"asks": "the loading of pynvml"})
    try:
        import pynvml
    except ImportError as error:
        send({"problem": f"nvidia-ml-py cannot be imported: {error}", "asks": None})
        return
    send({"asks": "nvmlInit"})
    start = time.monotonic()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        send({"problem": no_driver_error(pynvml, error).message, "library": loaded_library(), "asks": None})
        return
    send({"init_seconds": round(time.monotonic() - start, 4), "library": loaded_library()})
    for name, call in _VERSION_CALLS.items():
        send({"asks": call})
        try:
            send({name: _version_text(getattr(pynvml, call)())})
        except pynvml.NVMLError:
            continue
    send({"asks": "nvmlDeviceGetCount"})
    try:
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        send({"problem": f"the driver could not list its GPUs ({error})", "asks": None})
        return
    send({"asks": None})
    _query_gpus(pynvml, count, send)


def loaded_library() -> str | None:
    """Return the path of the driver's library that this process has loaded; None: none is loaded."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return next((line.split(None, 5)[5] for line in maps.splitlines() if _LIBRARY in line), None)


def _query_gpus(nvml: Any, count: int, send: SendFacts) -> None:
    """Query each GPU on a thread of its own, so that one that hangs does not delay the others."""

    def query(index: int) -> None:
        GpuQuery(nvml, index, lambda facts: send({"gpu": index, **facts})).run()

    threads = [threading.Thread(target=query, args=(index,), daemon=True) for index in range(count)]
    for index, thread in enumerate(threads):
        try:
            start_thread(thread)
        except ProcessLimitError:
            query(index)
    for thread in threads:
        if thread.ident is not None:
            thread.join()


def _version_text(answer: Any) -> str:
    """Return a version in its usual form; CUDA's is a number, 12040 for 12.4."""
    return f"{answer // 1000}.{answer % 1000 // 10}" if isinstance(answer, int) else str(answer)
