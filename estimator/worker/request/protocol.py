"""Protocol of the worker: one JSON request per line on stdin, one JSON answer per line on stdout.

A request names its operation in ``op`` and carries an ``id``, which its answer repeats. A request that fails is
answered with ``{"id": ..., "error": "one sentence"}``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO


class RefusedError(Exception):
    """What the request asks for cannot be done here; its message is a sentence for the user."""


_TOLD_VERSIONS = ("transformers", "peft", "accelerate", "trl", "diffusers", "timm", "lightning", "deepspeed",
                  "mamba_ssm", "bitsandbytes", "flash_attn", "liger_kernel")  # fmt: skip
_PR_SET_PDEATHSIG = 1
PARENT_CHECK_SECONDS = 0.5
"""Interval at which the worker checks that the process which started it still runs."""
QUIET_AND_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Variables under which transformers asks no hub, and says and starts no more than it must."""

Operation = Callable[[dict[str, Any]], dict[str, Any]]


def serve_requests(operations: dict[str, Operation]) -> None:
    """Answer requests until stdin ends. Nothing is downloaded, and no GPU is touched."""
    answers = _reserve_stdout()
    with contextlib.suppress(RuntimeError):  # no thread can be started: the worker ends with its request
        threading.Thread(target=_exit_with_parent, args=(os.getppid(),), daemon=True).start()
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):  # the job's: an invalid one would end the worker
        os.environ.pop(name, None)
    # a CUDA context would take memory of the GPUs that are being watched
    os.environ.update(QUIET_AND_OFFLINE, CUDA_VISIBLE_DEVICES="")
    for line in sys.stdin:
        if line.strip():
            answers.write(json.dumps(answer_request(operations, line)) + "\n")
            answers.flush()
            if "torch" in sys.modules:  # imported, or the next request may be the first to import it
                gc.enable()
            if gc.get_freeze_count():  # what libraries made is frozen, what the request left is freed before the next
                gc.collect()


def answer_request(operations: dict[str, Operation], line: str) -> dict[str, Any]:
    """Return the answer to one request line; a failure becomes its ``error``."""
    number = None
    try:
        request = json.loads(line)
        number = request.get("id")
        result = operations[request["op"]](request)
    except Exception as error:  # noqa: BLE001 - any library's failure has to reach the other side as a sentence
        text = " ".join(str(error).split())[:300]
        result = {"error": text if isinstance(error, RefusedError) else f"{type(error).__name__}: {text}"}
    return {"id": number, **result}


def loaded_versions() -> dict[str, str]:
    """Return the versions of Python, torch and other libraries that have been imported."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in _TOLD_VERSIONS:
        if name in sys.modules:
            with contextlib.suppress(PackageNotFoundError):
                found[name] = version(name)
    return found


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends, even in the middle of a kernel launch."""
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def _exit_with_parent(parent: int) -> None:
    """Exit soon after the parent process has ended, even in the middle of a request: no one reads the answer."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)


def _reserve_stdout() -> TextIO:
    """Return a private copy of stdout for answers; from here on, what libraries print goes to stderr."""
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return private
