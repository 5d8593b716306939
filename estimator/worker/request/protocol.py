"""How a worker program talks: one JSON request a line on stdin, one JSON answer a line on stdout.

A request names its operation in ``op`` and carries an ``id``, which its answer repeats. A request that fails is
answered with ``{"id": ..., "error": "one sentence"}``.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

PARENT_SECONDS = 0.5
"""So often a worker looks whether anybody waits for it still."""

Operation = Callable[[dict[str, Any]], dict[str, Any]]


class RefusedError(Exception):
    """The installed libraries cannot do what was asked for; the message is a sentence."""


def serve(operations: dict[str, Operation]) -> None:
    """Answer requests until stdin ends. Nothing is downloaded, and no card is touched."""
    answers = _own_stdout()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):  # the job's: a wrong one must not end the worker
        os.environ.pop(name, None)
    os.environ.update(
        CUDA_VISIBLE_DEVICES="",  # counting must not take memory of the cards that are being watched
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        TRANSFORMERS_VERBOSITY="error",
        TOKENIZERS_PARALLELISM="false",
    )
    for line in sys.stdin:
        if line.strip():
            answers.write(json.dumps(answer(operations, line)) + "\n")
            answers.flush()


def answer(operations: dict[str, Operation], line: str) -> dict[str, Any]:
    """The answer to one request line; a failure becomes its ``error``."""
    number = None
    try:
        request = json.loads(line)
        number = request.get("id")
        result = operations[request["op"]](request)
    except Exception as error:  # noqa: BLE001 - any library's failure has to reach the other side as a sentence
        text = " ".join(str(error).split())[:300]
        result = {"error": text if isinstance(error, RefusedError) else f"{type(error).__name__}: {text}"}
    return {"id": number, **result}


def ping(_request: dict[str, Any]) -> dict[str, Any]:
    """Which versions would answer."""
    return {"versions": versions()}


def versions() -> dict[str, str]:
    """Of Python and the libraries that count."""
    import torch
    import transformers

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
    }


def _end_with(parent: int) -> None:
    """End this process soon after the one that started it has ended: it would finish its work for nobody."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def _own_stdout() -> TextIO:
    """A private copy of stdout for answers; what libraries print goes to stderr from here on."""
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return private
