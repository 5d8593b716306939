"""Context of the preflight checks: the job, the machine, the environment, and the Python that will run the job.

Slow facts (an estimate, a worker, the network) are computed by the first check that needs them and kept for the others,
so that a check which needs none of them does not wait.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from vramtop.estimator.budget import Budget
from vramtop.estimator.common import VramtopError
from vramtop.estimator.job import Job
from vramtop.estimator.trace import InstalledPackages, TorchBuild

from ..facts import HubAccess, JobInterpreter, Machine

_Value = TypeVar("_Value")


class LazyValue(Generic[_Value]):
    """A value that is computed once, by the first thread that asks; other threads wait for it.

    Args:
        compute: returns the value, or raises a VramtopError, which is then raised for every caller.
    """

    def __init__(self, compute: Callable[[], _Value]) -> None:
        self._compute = compute
        self._lock = threading.Lock()
        self._value: _Value | VramtopError | None = None

    def __call__(self) -> _Value:
        """Return the value."""
        with self._lock:
            if self._value is None:
                try:
                    self._value = self._compute()
                except VramtopError as error:
                    self._value = error
        if isinstance(self._value, VramtopError):
            raise self._value
        return self._value


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """Everything that checks may examine. The callables raise a VramtopError if their value cannot be determined."""

    job: Job
    machine: Machine
    environ: Mapping[str, str]
    """Environment of the job."""
    working_folder: Path
    """Folder in which the job is started; its relative paths count from here."""
    quick_budget: Callable[[], Budget]
    """Budget by the closed form, in milliseconds."""
    deepest_budget: Callable[[], Budget]
    """Budget by the deepest method available; raises CancelledError if it takes too long."""
    interpreter: JobInterpreter
    packages: Callable[[], InstalledPackages]
    torch_build: Callable[[], TorchBuild]
    hub_access: Callable[[], HubAccess]
    """Asks the Hugging Face hub over the network whether the job's model may be downloaded."""
    local_ranks: int | None = None
    """Ranks on this machine; None: not stated."""

    @property
    def several_machines(self) -> bool:
        """True if some of the job's ranks run on other machines."""
        return self.local_ranks is not None and self.local_ranks < self.job.parallel.world_size

    @property
    def python_is_elsewhere(self) -> bool:
        """True if the job is for another machine, and nobody has named a Python that stands for the one there."""
        return self.machine.is_described and not self.interpreter.is_certain

    @property
    def ranks_here(self) -> int:
        """Ranks on this machine; all ranks of the job unless stated otherwise."""
        return self.local_ranks or self.job.parallel.world_size

    def path(self, text: str) -> Path:
        """Return a path of the job as an absolute one."""
        home = self.environ.get("HOME")
        if home and (text == "~" or text.startswith("~/")):
            return Path(home) / text[2:]
        return self.working_folder / text
