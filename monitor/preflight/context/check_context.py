"""What checks look at: the job, the machine, the environment, and the Python that will run the job.

What takes time (an estimate, a worker, the network) is asked for by the first check that needs it and kept for the
others, so that a check which needs none of it waits for nothing.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.job.job import Job
from vramtop.estimator.trace.installed_packages import InstalledPackages, TorchBuild

from ..facts.hub_access import HubAccess
from ..facts.job_interpreter import JobInterpreter
from ..facts.machine import Machine

_Value = TypeVar("_Value")


class LazyValue(Generic[_Value]):
    """A question that is asked once: who asks meanwhile waits, who asks later is told the same.

    Args:
        ask: answers, or raises a VramtopError that everybody is told.
    """

    def __init__(self, ask: Callable[[], _Value]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._answer: _Value | VramtopError | None = None

    def __call__(self) -> _Value:
        """The answer."""
        with self._lock:
            if self._answer is None:
                try:
                    self._answer = self._ask()
                except VramtopError as error:
                    self._answer = error
        if isinstance(self._answer, VramtopError):
            raise self._answer
        return self._answer


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """All that checks may look at. What is called raises a VramtopError where there is no answer."""

    job: Job
    machine: Machine
    environ: Mapping[str, str]
    """The job's."""
    working_folder: Path
    """In which the job is started: its relative paths count from here."""
    quick_budget: Callable[[], Budget]
    """The closed form's budget, in milliseconds."""
    deepest_budget: Callable[[], Budget]
    """The deepest budget to be had; raises CancelledError where that takes too long."""
    interpreter: JobInterpreter
    packages: Callable[[], InstalledPackages]
    torch_build: Callable[[], TorchBuild]
    hub_access: Callable[[], HubAccess]
    """What the hub says of the job's model; asks it over the network."""
    local_ranks: int | None = None
    """Ranks on this machine; None: nobody says."""

    @property
    def several_machines(self) -> bool:
        """Some of the job's ranks run elsewhere."""
        return self.local_ranks is not None and self.local_ranks < self.job.parallel.world_size

    def path(self, text: str) -> Path:
        """A path of the job's."""
        home = self.environ.get("HOME")
        if home and (text == "~" or text.startswith("~/")):
            return Path(home) / text[2:]
        return self.working_folder / text
