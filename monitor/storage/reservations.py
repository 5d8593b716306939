"""GPU memory reserved for jobs that are about to start, so that no two jobs count on the same memory.

A reservation is a small file in its user's folder, which all users of the machine read. It belongs to a process and is
void when that has ended, or at its expiry. Memory that the process and its descendants hold already is deducted.
"""

import contextlib
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import msgspec

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.limits import RESERVATION_FILE, RESERVATIONS, LimitError, decode_json, read_all
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.common.trust import process_owner, user_name

from ..host.plain_text import sanitize_line
from ..host.process_stat import ancestor_pids, is_running
from ..snapshot.figures import MAX_UNIX_SECONDS
from ..snapshot.snapshot import DeviceIndex, GpuProcess, GpuReading, ProcessKey, Snapshot

FOLDER = Path("/tmp/vramtop-reservations")  # noqa: S108 - not TMPDIR: it must be the same for all users; see _own_folder
"""The beginning of the folders' names, to which their user's id is added."""
_NAME = re.compile(r"(\d{1,10})-(\d{1,15})\.json")
"""Process and its start time in Unix milliseconds."""
_LOCK_TIMEOUT_SECONDS = 10.0
_RETRY_SECONDS = 0.01


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation of GPU memory for one job."""

    pid: int
    start_time: float
    """Unix seconds; with the pid it identifies the process that the reservation belongs to."""
    job: str
    """Name of the job, for the user."""
    gpus: dict[str, int]
    """Bytes by the uuid of a GPU or MIG device, or by the GPU's index if it has none."""
    until: float | None = None
    """Unix seconds of the expiry; None: valid as long as the process runs."""

    @property
    def is_plausible(self) -> bool:
        """True if its figures are possible: any user may have written it."""
        times = (self.start_time, self.until or 0.0)
        sizes = all(0 <= size < 2**63 for size in self.gpus.values())
        return 1 <= self.pid < 2**31 and all(0 <= time <= MAX_UNIX_SECONDS for time in times) and sizes


class Reservations(msgspec.Struct, frozen=True):
    """The reservations on this machine.

    Args:
        folder: the beginning of the names of the folders.
        is_running: returns True if a process still runs.
        ancestors: returns the pids of a process's parent, its parent's parent and so on.
    """

    folder: Path = FOLDER
    is_running: Callable[[ProcessKey], bool] = is_running
    ancestors: Callable[[int], tuple[int, ...]] = ancestor_pids

    @contextlib.contextmanager
    def locked(self, timeout_seconds: float = _LOCK_TIMEOUT_SECONDS) -> Iterator[None]:
        """Hold the lock under which processes of this machine decide on reservations.

        It is an address of Linux' own, without a file that users would have to share: the kernel frees it when its
        holder has ended.

        Raises:
            CannotTellError: another process holds the lock for too long.
        """
        end = time.monotonic() + timeout_seconds
        with socket.socket(socket.AF_UNIX) as lock:
            while True:
                try:
                    lock.bind(f"\0{self.folder}")
                    break
                except OSError:
                    if time.monotonic() > end:
                        raise CannotTellError(
                            f"Another process has held the lock of reservations for {timeout_seconds:.0f} s; "
                            f"'ss -xap | grep {self.folder}' names it: end it, and try again."
                        ) from None
                    time.sleep(_RETRY_SECONDS)
            yield

    def add(self, reservation: Reservation) -> None:
        """Write a reservation, replacing an earlier one of the same process.

        Raises:
            CannotTellError: the folder cannot be written to.
        """
        folder = self._own_folder()
        name = _file_name(reservation)
        part = folder / f".{name}.{os.getpid()}"
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(reservation))
            part.replace(folder / name)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise CannotTellError(
                f"{folder}, where reservations are kept, cannot be written to: {error.strerror}."
            ) from None

    def active(self) -> tuple[Reservation, ...]:
        """Return the valid reservations; void ones of this user are removed."""
        found = []
        for folder in self._folders():
            for name, process in _files(folder):
                is_running = self.is_running(process)
                reservation = _read(folder / name) if is_running else None
                is_over = reservation is not None and reservation.until is not None and time.time() >= reservation.until
                if reservation is not None and not is_over:
                    found.append(reservation)
                elif _owner(folder) == os.geteuid() and (is_over or not is_running):
                    with contextlib.suppress(OSError):
                        (folder / name).unlink()
        return tuple(found)

    def committed(self, snapshot: Snapshot) -> dict[DeviceIndex, int]:
        """Return reserved bytes that their jobs do not hold yet, by GPU or GPU instance; of each at most its memory."""
        families: dict[int, tuple[int, ...]] = {}
        committed: dict[DeviceIndex, int] = {}
        for reservation in self.active():
            for gpu in snapshot.gpus:
                devices = list(_reserved_on(reservation.gpus, gpu))
                for process in gpu.processes or () if devices else ():
                    if process.pid not in families:
                        families[process.pid] = self._with_ancestors(process.pid)
                own = [each for each in gpu.processes or () if reservation.pid in families.get(each.pid, ())]
                for device, reserved in devices:
                    held = _held_on(device, gpu.index, own)
                    committed[device] = committed.get(device, 0) + max(0, reserved - held)
        return {device: size for device, size in committed.items() if size}

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        """Return who has reserved memory of these GPUs, as sentences."""
        return tuple(
            f"{format_gib(size)} GiB of GPU {gpu.index} are reserved for {sanitize_line(each.job) or 'a job'} "
            f"(process {each.pid} of {_name_of(process_owner(each.pid))})."
            for each in self.active()
            for gpu in snapshot.gpus
            for _, size in _reserved_on(each.gpus, gpu)
        )

    def reserved_pids(self, snapshot: Snapshot) -> frozenset[int]:
        """Return the pids in the snapshot that hold a reservation, or descend from a process that does."""
        owners = {reservation.pid for reservation in self.active()}
        pids = {process.pid for _, process in snapshot.processes()} if owners else set()
        return frozenset(pid for pid in pids if not owners.isdisjoint(self._with_ancestors(pid)))

    def _with_ancestors(self, pid: int) -> tuple[int, ...]:
        return pid, *self.ancestors(pid)

    def _folders(self) -> list[Path]:
        """Return the folders of all users; one that is not of the user in its name counts for none."""
        found = self.folder.parent.glob(f"{self.folder.name}-*")
        return [each for each in found if each.name == f"{self.folder.name}-{_owner(each)}"]

    def _own_folder(self) -> Path:
        """Return this user's folder, created if it is missing: nobody else may replace files in it.

        Raises:
            CannotTellError: it cannot be created, or something else has its name.
        """
        folder = self.folder.with_name(f"{self.folder.name}-{os.geteuid()}")
        try:
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                folder.chmod(0o755)  # independent of the umask
            found = folder.lstat()
        except OSError as error:
            raise CannotTellError(
                f"{folder}, where reservations are kept, cannot be created: {error.strerror}."
            ) from None
        if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
            raise CannotTellError(
                f"{folder}, where reservations are kept, is no folder of yours, but of {_name_of(found.st_uid)}."
            )
        return folder


def _file_name(reservation: Reservation) -> str:
    return f"{reservation.pid}-{round(reservation.start_time * 1000)}.json"


def _files(folder: Path) -> list[tuple[str, ProcessKey]]:
    """Return the names of reservations in a folder, each with its process; of a link none, wherever it leads."""
    if folder.is_symlink():
        return []
    try:
        with os.scandir(folder) as entries:
            names = (_NAME.fullmatch(entry.name) for entry in islice(entries, RESERVATIONS.items))
            return sorted((match[0], (int(match[1]), int(match[2]) / 1000)) for match in names if match)
    except OSError:
        return []


def _read(file: Path) -> Reservation | None:
    """Return the reservation in a file; None if it is invalid, or its author is neither root nor owns the process."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as opened:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return None
            reservation: Reservation = decode_json(read_all(opened.read, RESERVATION_FILE), Reservation)
    except (OSError, LimitError):
        return None
    is_theirs = found.st_uid in (0, process_owner(reservation.pid))
    return reservation if reservation.is_plausible and is_theirs and file.name == _file_name(reservation) else None


def _owner(folder: Path) -> int | None:
    try:
        return folder.lstat().st_uid
    except OSError:
        return None


def _name_of(uid: int | None) -> str:
    return "an unknown user" if uid is None else user_name(uid)


def _reserved_on(gpus: Mapping[str, int], gpu: GpuReading) -> Iterator[tuple[DeviceIndex, int]]:
    """Yield the bytes reserved on the GPU, and on each of its MIG devices: at most what it has, whoever asks for it."""
    devices: list[tuple[DeviceIndex, str, int | None]] = [(gpu.index, gpu.uuid or str(gpu.index), gpu.total_bytes)]
    devices += [((gpu.index, device.gpu_instance), device.uuid, device.total_bytes) for device in gpu.mig or ()]
    for device, name, total in devices:
        if gpus.get(name, 0) > 0:
            yield device, gpus[name] if total is None else min(gpus[name], total)


def _held_on(device: DeviceIndex, gpu_index: int, processes: Iterable[GpuProcess]) -> int:
    """Return the bytes that processes hold on a device; a process of unknown GPU instance counts for each of them."""
    devices = (gpu_index, device)
    return sum(
        process.used_bytes or 0
        for process in processes
        if device == gpu_index or process.device_index_on(gpu_index) in devices
    )
