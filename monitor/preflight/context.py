"""Context of the preflight checks: the job, the machine, the GPUs of its ranks, and the Python that will run it."""

from collections.abc import Callable, Mapping
from pathlib import Path

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
