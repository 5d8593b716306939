"""A preflight check: its context, what it finds, and the GPUs of the job."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from vramtop.estimator.budget import Budget
from vramtop.estimator.job.job import Job
from vramtop.estimator.model.hub import Refusal
from vramtop.estimator.trace.installed_packages import InstalledPackages, TorchBuild

from ..attach.chosen_devices import ChosenDevices
from ..attach.gpu_assignment import GpuAssignment, GpuEnvironment, assign_gpu, visible_mig_devices
from ..board.capacity import DeviceCapacity
from .job_launch import JobInterpreter
from .machine import Machine


class CheckContext(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that checks may examine.

    The callables return slow facts (an estimate, a worker, the network), which the first check that needs them computes
    for the others; they raise a VramtopError if their value cannot be determined.
    """

    job: Job
    machine: Machine
    environ: Mapping[str, str]
    """Environment of the job."""
    devices: ChosenDevices = msgspec.field(default_factory=ChosenDevices)
    """The GPUs that it chooses, where this is known; its environment names them."""
    working_folder: Path
    """Folder in which the job is started; its relative paths count from here."""
    quick_budget: Callable[[], Budget]
    """Budget by the closed form, in milliseconds."""
    deepest_budget: Callable[[], Budget]
    """Budget by the deepest method available; raises CancelledError if it takes too long."""
    interpreter: JobInterpreter
    packages: Callable[[], InstalledPackages]
    torch_build: Callable[[], TorchBuild]
    hub_access: Callable[[], Refusal]
    """Asks the Hugging Face hub over the network whether the job's model may be downloaded."""
    local_ranks: int | None = None
    """Ranks on this machine; None: not stated."""

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


_MAX_RANKS = 1024
"""No machine has a GPU for more; of more ranks the first stand for the others."""


def assign_gpus(context: CheckContext) -> tuple[GpuAssignment, ...]:
    """Return the GPU of each rank on this machine, by local rank; empty if this machine's GPUs cannot be read."""
    snapshot = context.machine.snapshot
    if snapshot is None:
        return ()
    environments = (
        GpuEnvironment.from_environ(context.environ, local_rank=rank)
        for rank in range(min(context.ranks_here, _MAX_RANKS))
    )
    return tuple(assign_gpu(environment, snapshot.gpus, pid=0) for environment in environments)


def assigned_gpu_indices(context: CheckContext) -> tuple[int, ...]:
    """Return the indices of the existing GPUs that the ranks will use, each once."""
    here = {gpu.index for gpu in context.machine.snapshot.gpus} if context.machine.snapshot else set()
    gpus = (assignment.gpu for assignment in assign_gpus(context))
    return tuple(dict.fromkeys(gpu for gpu in gpus if gpu is not None and gpu in here))


def target_devices(context: CheckContext) -> tuple[DeviceCapacity, ...]:
    """Return the devices that the job will use; all considered ones if that is unknown."""
    devices = context.machine.devices
    if context.machine.chosen or context.devices.is_unknown:
        return devices
    gpus = context.machine.snapshot.gpus if context.machine.snapshot else ()
    mig_devices = visible_mig_devices(GpuEnvironment.from_environ(context.environ, local_rank=None), gpus)
    if mig_devices:
        return tuple(device for device in devices if device.uuid in mig_devices)
    indices = assigned_gpu_indices(context)
    chosen = tuple(device for device in devices if device.index in indices)
    return chosen if len(chosen) == context.ranks_here else devices


CheckStatus = Literal["pass", "warning", "failure", "skipped"]
PYTHON_ELSEWHERE = "the Python that will run the job is on the other machine; --python names one to check"


class CheckJson(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one check."""

    name: str
    """Name of the check."""
    status: CheckStatus
    """`failure`: the job will not run like this; `skipped`: the check does not apply here."""
    found: str
    """The finding, in one or two sentences without a full stop at the end."""
    advice: str | None
    """How to correct it; null: there is nothing to correct."""
    unknown: bool
    """A warning because the check came to no conclusion, or not in time."""


class CheckResult(CheckJson, frozen=True, kw_only=True):
    """Result of one check; name and weight are those of its row."""

    name: str = ""
    advice: str | None = None
    unknown: bool = False
    decisive: bool = False
    """Without a conclusion of this check it is unknown whether the job may start."""

    def to_json(self) -> dict[str, Any]:
        """Return one entry of ``vramtop preflight --json``, a ``CheckJson``."""
        return {name: getattr(self, name) for name in CheckJson.__struct_fields__}


def passes(found: str) -> CheckResult:
    """Return a result without a problem."""
    return CheckResult(status="pass", found=found)


def warns(found: str, advice: str | None = None) -> CheckResult:
    """Return a result for a job that may run, but not as it should."""
    return CheckResult(status="warning", found=found, advice=advice)


def fails(found: str, advice: str | None = None) -> CheckResult:
    """Return a result for a job that will not run."""
    return CheckResult(status="failure", found=found, advice=advice)


def skips(found: str) -> CheckResult:
    """Return a result for a check that does not apply."""
    return CheckResult(status="skipped", found=found)


def inconclusive(found: str, advice: str | None = None) -> CheckResult:
    """Return a result for a check that came to no conclusion."""
    return CheckResult(status="warning", found=found, advice=advice, unknown=True)


class Check(msgspec.Struct, frozen=True):
    """One preflight check."""

    name: str
    run: Callable[["CheckContext"], CheckResult]
    """A VramtopError, or an OSError of a file or device that cannot be read, is no conclusion."""
    waits_for: str = "this machine"
    """What it may have to wait for; shown while it runs."""
    timeout_seconds: float = 30
    decisive: bool = False
    """If this check comes to no conclusion, preflight as a whole does not either."""
