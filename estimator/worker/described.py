"""Rehearses the training script that a described job stands for: the steps alone, in a child of the warm worker.

The worker has imported the libraries, and the child, a fork, changes them as a rehearsal does; nothing of that stays.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .repetition.repeated_trace import TracedSteps
from .repetition.shallow_models import DEPTH_FIELDS
from .replaced import replaced
from .request.protocol import RefusedError, die_with_parent

STEPS = 2
"""Steps of each optimizer: its states are there from the second on."""
_SECONDS = 600
_MOST_CHARACTERS = 300


def trace_script(script: Mapping[str, Any], configs: Sequence[dict[str, Any] | None]) -> list[TracedSteps]:
    """Run a script's steps and return every allocation, for each of several configs of its model.

    Args:
        script: its ``text``, the words that start it (``start``), the ``gpus`` and the ``card`` that it finds.
        configs: fields that stand in for the script's own; None: its own. Each has a process of its own, all at once.

    Raises:
        RefusedError: it fails; the sentence says where.
    """
    answers = _answers(script, configs, {})
    if any(each["error"] and each["assumes_any"] for each in answers):  # it may run where none of many values is true
        answers = _answers(script, configs, {"any": False})
    for each in answers:
        if each["error"] is not None:
            raise RefusedError(f"the job's program {each['error'][:_MOST_CHARACTERS]}")
    return [TracedSteps(**each["steps"]) for each in answers]


def _answers(
    script: Mapping[str, Any], configs: Sequence[dict[str, Any] | None], assumed: dict[str, Any]
) -> list[dict[str, Any]]:
    """Run a script once for each config, all at once, and return what the processes answer."""
    folder = Path(tempfile.mkdtemp(prefix="vramtop-"))
    gc.freeze()  # what is imported is looked through by no collection
    children: dict[int, Path] = {}
    try:
        for number, config in enumerate(configs):
            own = folder / str(number)
            (own / "run").mkdir(parents=True)
            child = os.fork()
            if not child:
                _run(own, script, config, assumed)  # does not return
            children[child] = own
        ended = [(own, os.waitpid(child, 0)[1]) for child, own in children.items()]
        return [_answer(own, status) for own, status in ended]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answer(folder: Path, status: int) -> dict[str, Any]:
    try:
        found: dict[str, Any] = pickle.loads((folder / "answer").read_bytes())  # noqa: S301 - written by a child
    except FileNotFoundError:
        error = f"was ended with status {os.waitstatus_to_exitcode(status)}: {_last_line(folder)}"
        return {"error": error, "assumes_any": False}
    if found["error"] == "":
        found["error"] = f"ended before an optimizer had stepped: {_last_line(folder)}"
    return found


def _last_line(folder: Path) -> str:
    """Return the last line that a program has printed."""
    with contextlib.suppress(OSError), (folder / "said").open(encoding="utf-8", errors="replace") as file:
        return " ".join([line.strip() for line in file if line.strip()][-1:])
    return ""


def import_libraries(text: str) -> None:
    """Import what the script imports, but for libraries that a rehearsal must see being imported."""
    for line in text.splitlines():
        if line.startswith(("import torch", "from transformers import", "from peft import")):
            exec(line, {})  # noqa: S102 - a line that vramtop has written


def _run(folder: Path, script: Mapping[str, Any], config: dict[str, Any] | None, assumed: dict[str, Any]) -> None:
    """Run the script in this process, which ends with it."""
    try:
        die_with_parent()  # a worker that is ended has nobody who waits for the answer
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
        output = os.open(folder / "said", os.O_WRONLY | os.O_CREAT, 0o600)
        for number in (1, 2):
            os.dup2(output, number)
        os.chdir(folder / "run")
        Path("train.py").write_text(script["text"], encoding="utf-8")
        from .rehearsal.ranks import start
        from .rehearsal.scripted import run_steps

        files = {"answer": str(folder / "answer")}
        plan = {"steps": STEPS, "gpus": script["gpus"], "card": script["card"], "seconds": _SECONDS, **assumed, **files}
        with contextlib.nullcontext() if config is None else _with_config(config):
            run_steps(plan, lambda gpus: start(script["start"], gpus))
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _with_config(fields: dict[str, Any]) -> Any:
    """Return a context in which the script makes a config of these fields: one with fewer layers than its own."""
    from transformers import AutoConfig

    make = AutoConfig.for_model

    def for_model(model_type: str, *_: Any, **given: Any) -> Any:
        return make(
            model_type, **{name: value for name, value in fields.items() if name in given or name in DEPTH_FIELDS}
        )

    return replaced((AutoConfig, "for_model", staticmethod(for_model)))
