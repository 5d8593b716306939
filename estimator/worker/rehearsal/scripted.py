"""Rehearsal of a script of vramtop's own, of which only the steps count."""

from __future__ import annotations

import pickle
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..memory.history import Phase, settled
from ..request.protocol import loaded_versions
from .program import Rehearsal

_WORKER = str(Path(__file__).parents[1])


class Steps(Rehearsal):
    """Ends after the steps, or with a script that trains nothing; it has the history of all allocations."""

    may_catch_errors = False

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__(plan)
        self.gpus.notes_lines = False  # those of a script that nobody has looked at

    def _begin_next_step(self) -> None:
        if max(self._steps.values()) >= self.plan["steps"]:
            self._finish("steps")
        self._step = max(self._steps.values()) + 1

    def _write(self, ended: str, error: BaseException | None) -> None:
        gpus, history = self.gpus, self.gpus.history
        is_done = ended == "steps" or (ended == "end" and not self._trains and self._first_call is not None)
        failed = None if is_done else _failure(error)
        history.phases.append(Phase(self.plan["steps"] + 1, "end", len(history.events)))
        steps = {
            "history": settled(history),
            "parameters": sum((self._own_sizes or self._sizes).values()),
            "trainable": self._trained_elements(),
            "gradients": len(self._trained),
            "doubts": tuple(gpus.doubts.sentences),
            "versions": loaded_versions(),
        }
        assumes_any = any(each.endswith("; yes is assumed") for each in gpus.doubts.sentences)
        answer = {"error": failed, "assumes_any": assumes_any, "steps": steps}
        Path(self.plan["answer"]).write_bytes(pickle.dumps(answer, protocol=4))


_LEAST_TRANSFORMERS = 45
"""The minor version of transformers 4 with whose interface the scripts are written."""


def _failure(error: BaseException | None) -> str:
    """Return why there is no answer, in a line; empty: the program ended."""
    if error is None:
        return ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"needs {error.name.partition('.')[0]}, which {sys.executable} does not have"
    has = loaded_versions().get("transformers", "")
    if (found := re.match(r"4\.(\d+)", has)) is not None and int(found[1]) < _LEAST_TRANSFORMERS:
        needs = f"that vramtop writes needs transformers 4.{_LEAST_TRANSFORMERS}"
        return f"{needs}, and {sys.executable} has {has}; vramtop rehearse runs your own"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _is_own(each.filename)]
    line = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"fails with {type(error).__name__}: {' '.join(str(error).split())}{line}"


def _is_own(file: str) -> bool:
    """Return True for a file of the user's: no library's, and not the script."""
    return not file.startswith(("<", _WORKER)) and "-packages/" not in file and not file.endswith("/train.py")


def run_steps(plan: dict[str, Any], program: Callable[[Any], object]) -> None:
    """Run a program, which is given the GPUs; the process ends with it."""
    rehearsal = Steps(plan)
    sys.argv = ["train.py"]
    rehearsal.run(lambda: program(rehearsal.gpus))
