"""The facts of the report. The names of the fields are the keys of ``vramtop doctor --json``."""

from collections.abc import Mapping

import msgspec

from ..snapshot.figures import NO_ANSWER, Fault


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one GPU; None: not reported."""

    index: int
    """NVML index."""
    name: str | None = None
    """Name of the card."""
    uuid: str | None = None
    """First characters of the UUID."""
    total_bytes: int | None = None
    """Its memory."""
    used_bytes: int | None = None
    """Used memory; with that of the driver where ``reserved_bytes`` is unknown."""
    free_bytes: int | None = None
    """Free memory."""
    reserved_bytes: int | None = None
    """Memory that the driver reserves."""
    compute_mode: str | None = None
    """Which processes may start CUDA programs on it."""
    mig_devices: int | None = None
    """Its MIG devices; None: MIG is off, or unknown."""
    processes: int | None = None
    """Number of processes on it."""
    processes_seen: int | None = None
    """Processes that can be identified from here."""
    processes_of_others: int | None = None
    """Processes of other users."""
    processes_without_memory: int | None = None
    """Processes whose memory the driver does not report."""
    faults: tuple[Fault, ...] = ()
    """What could not be read, with the driver's error codes."""


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """The driver; None: not reported."""

    problem: str | None = None
    """Why it cannot be used, in a sentence; None: it can."""
    driver_version: str | None = None
    """Its version."""
    cuda_version: str | None = None
    """Latest CUDA version that it supports."""
    kernel_module: str | None = None
    """Kind and version of the kernel module, from /proc."""
    library: str | None = None
    """Path of the library that was loaded."""
    init_seconds: float | None = None
    """Time that NVML took to start."""
    read_seconds: float | None = None
    """Time that one reading of all GPUs took."""
    faults: tuple[Fault, ...] = ()
    """What could not be read of the machine as a whole."""


class DriverFacts(Driver, frozen=True, kw_only=True):
    """The driver and the GPUs that it lists."""

    gpus: tuple[GpuFacts, ...] = ()

    @property
    def hangs(self) -> bool:
        """True if the driver does not answer for a GPU."""
        return any(fault.code == NO_ANSWER for gpu in self.gpus for fault in gpu.faults)


class SystemFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the system; None: unknown."""

    packages: Mapping[str, str]
    """Versions of the installed packages, by name."""
    python: str
    """Version of the Python that runs vramtop."""
    kernel: str
    """Name and release of the kernel."""
    machine: str
    """Processor architecture."""
    distribution: str | None
    """Name and version of the distribution."""
    libc: str | None
    """Name and version of the C library."""
    processors: int | None
    """Number of logical processors."""
    memory_bytes: int
    """RAM of the machine."""
    memory_limit_bytes: int | None
    """Limit of the control group; None: no limit, or it cannot be read."""
    container: tuple[str, ...]
    """Kinds of container that were detected."""
    own_pid_namespace: bool | None
    """True if pids here differ from the machine's."""
    wsl: bool
    """It is the Windows Subsystem for Linux."""
    environment: Mapping[str, str]
    """Relevant variables, from a list of those that may be shown; values of others are never read."""


class DeviceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A device file of the driver."""

    path: str
    """Path of the file."""
    mode: str
    """Permission bits in octal: ``0666``."""
    usable: bool
    """True if this user may read and write it."""


class PermissionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Permissions of this user."""

    root: bool
    """vramtop runs as root."""
    devices: tuple[DeviceFile, ...]
    """Device files of the driver."""
    hidepid: str | None
    """Mount option with which /proc hides other users' processes; None: it does not."""
    sees_others: bool
    """True if processes of another user can be seen."""
    pidfd: bool
    """True if a signal can be sent through a pidfd, which never reaches a later process with the same pid."""


class DataFolderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The folder in which vramtop keeps files for the user between runs."""

    folder: str
    """Its path."""
    there: bool
    """It exists."""
    writable: bool
    """This user may write to it."""
    set_aside: int
    """Number of damaged files that were set aside."""


class InterpreterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An interpreter that could run vramtop's workers."""

    path: str
    """Path of the program."""
    named_by: str
    """Why it is considered: ``--python``, a variable, or that it runs vramtop."""
    torch: str | None = None
    """Version; None: it has torch and transformers not both installed, or it does not run."""
    transformers: str | None = None
    """Version; None: likewise."""
    peft: str | None = None
    """Version; None: not installed."""
    problem: str | None = None
    """Why it could not be asked; None: it was."""


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """All facts about this machine."""

    system: SystemFacts
    driver: DriverFacts
    access: PermissionFacts
    files: DataFolderFacts
    pythons: tuple[InterpreterFacts, ...]
