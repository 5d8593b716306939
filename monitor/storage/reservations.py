"""Room on this machine's GPUs that is promised to jobs about to start, so that two of them do not both take it.

A promise is a small file in a folder that all users of the machine share. It belongs to a process: when that has ended,
or its time is up, it is void. What the process and those that it started already hold on a GPU is taken off it.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import CannotTellError

from ..host.process_identity import is_running
from ..host.process_origin import ancestor_pids
from ..snapshot.snapshot import MAX_UNIX_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ..snapshot.snapshot import DeviceIndex, GpuReading, ProcessKey, Snapshot

FOLDER = Path("/tmp/vramtop-reservations")  # noqa: S108 - not TMPDIR: it must be the same for all; see _checked
_LONGEST_BYTES = 2**16
_MOST_PROMISES = 1000
"""Anybody may fill the folder; these are looked at every second."""
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A promise."""

    pid: int
    start_time: float
    """Unix seconds; with the pid it identifies the process that the promise belongs to."""
    job: str
    """Its name, for people."""
    gpus: dict[str, int]
    """Bytes by the uuid of a GPU or MIG device, or by the GPU's index where it has none."""
    until: float | None = None
    """Unix seconds; None: as long as the process lives."""

    @property
    def plausible(self) -> bool:
        """Whether its figures can be true: anybody may have written it."""
        times = (self.start_time, self.until or 0.0)
        sizes = all(0 <= size <= 2**62 for size in self.gpus.values())
        return 1 <= self.pid < 2**31 and all(0 <= time <= MAX_UNIX_SECONDS for time in times) and sizes


@dataclass(frozen=True, slots=True)
class Reservations:
    """The promises on this machine.

    Args:
        folder: where they lie.
        is_running: whether a process still runs.
        ancestors: the pids of a process's parent, its parent, and so on.
        now: Unix seconds.
    """

    folder: Path = FOLDER
    is_running: Callable[[ProcessKey], bool] = is_running
    ancestors: Callable[[int], tuple[int, ...]] = ancestor_pids
    now: Callable[[], float] = time.time

    @contextlib.contextmanager
    def locked(self, patience_seconds: float = _PATIENCE_SECONDS) -> Iterator[None]:
        """Nobody else on this machine decides meanwhile.

        Raises:
            CannotTellError: the folder cannot be used, or somebody else decides for too long.
        """
        handle = self._open_lock()
        try:
            end = time.monotonic() + patience_seconds
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise CannotTellError(
                            f"Another process has held {self.folder}/lock for {patience_seconds:.0f} s; "
                            "fuser names it, and when it has ended vramtop goes on."
                        ) from None
                    time.sleep(0.02)
            yield
        finally:
            os.close(handle)

    def add(self, reservation: Reservation) -> None:
        """Write a promise down, in place of an older one of the same process.

        Raises:
            CannotTellError: the folder cannot be written to.
        """
        import msgspec

        folder = self._checked()
        name = _name(reservation)
        part = folder / f".{name}.{os.getpid()}"
        try:
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(reservation))
            part.replace(folder / name)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise CannotTellError(f"{folder} cannot be written to: {error.strerror}.") from None

    def active(self) -> tuple[Reservation, ...]:
        """Those that hold; one's own that are void are removed. None where there is no such folder."""
        try:
            files = sorted(itertools.islice(self.folder.glob("*.json"), _MOST_PROMISES))
        except OSError:
            return ()
        found = []
        for file in files:
            reservation = _read(file)
            if reservation is None or file.name != _name(reservation):
                continue
            if self._holds(reservation):
                found.append(reservation)
            else:
                with contextlib.suppress(OSError):  # another user's
                    file.unlink()
        return tuple(found)

    def committed(self, snapshot: Snapshot) -> dict[DeviceIndex, int]:
        """Bytes by GPU, or GPU instance, that are promised and not taken yet."""
        promises = self.active()
        families: dict[int, tuple[int, ...]] = {}
        committed: dict[DeviceIndex, int] = {}
        for promise in promises:
            for gpu in snapshot.gpus:
                places = list(_promised(promise.gpus, gpu))
                for process in gpu.processes or () if places else ():  # other GPUs' processes are nobody's business
                    if process.pid not in families:
                        families[process.pid] = self._with_ancestors(process.pid)
                theirs = [p for p in gpu.processes or () if promise.pid in families.get(p.pid, ())]
                for place, promised in places:
                    inside = place if isinstance(place, tuple) else None
                    # a process whose instance is not known may be in this one
                    held = sum(
                        p.used_bytes or 0
                        for p in theirs
                        if inside is None or p.device_index_on(gpu.index) in (gpu.index, inside)
                    )
                    committed[place] = committed.get(place, 0) + max(0, promised - held)
        return {place: size for place, size in committed.items() if size}

    def reserved_pids(self, snapshot: Snapshot) -> frozenset[int]:
        """The pids of the snapshot's processes to which something is promised, or to somebody who started them."""
        owners = {promise.pid for promise in self.active()}
        pids = {process.pid for _, process in snapshot.processes()} if owners else set()
        return frozenset(pid for pid in pids if not owners.isdisjoint(self._with_ancestors(pid)))

    def _with_ancestors(self, pid: int) -> tuple[int, ...]:
        return pid, *self.ancestors(pid)

    def _holds(self, reservation: Reservation) -> bool:
        in_time = reservation.until is None or self.now() < reservation.until
        return in_time and self.is_running((reservation.pid, reservation.start_time))

    def _open_lock(self) -> int:
        file = self._checked() / "lock"
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            try:
                return os.open(file, flags)  # not O_CREAT: the kernel protects other users' files in such folders
            except FileNotFoundError:
                handle = os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o666)
                os.fchmod(handle, 0o666)  # whatever the umask is
                return handle
        except FileExistsError:
            return os.open(file, flags)
        except OSError as error:
            raise CannotTellError(f"{file} cannot be opened: {error.strerror}.") from None

    def _checked(self) -> Path:
        """The folder, made where it is missing; what another user could turn against this one is refused."""
        try:
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(mode=0o1777)
                self.folder.chmod(0o1777)  # whatever the umask is
            found = self.folder.lstat()
        except OSError as error:
            raise CannotTellError(f"{self.folder} cannot be made: {error.strerror}.") from None
        own = found.st_uid in (0, os.geteuid()) or bool(found.st_mode & stat.S_ISVTX)
        if not stat.S_ISDIR(found.st_mode) or not own:
            raise CannotTellError(f"{self.folder} is not a folder that all users may share; remove it.")
        return self.folder


def _name(reservation: Reservation) -> str:
    return f"{reservation.pid}-{round(reservation.start_time * 1000)}.json"


def _read(file: Path) -> Reservation | None:
    """A promise, unless somebody else made it for a process that is not theirs."""
    import msgspec  # not before there is a promise

    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as opened:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_size > _LONGEST_BYTES:
                return None
            reservation = msgspec.json.decode(opened.read(_LONGEST_BYTES), type=Reservation)
        return reservation if reservation.plausible and _may_promise(found.st_uid, reservation.pid) else None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _may_promise(uid: int, pid: int) -> bool:
    """Root for everybody, everybody for their own processes; those that have gone harm nobody."""
    try:
        return uid in (0, Path(f"/proc/{pid}").stat().st_uid)
    except OSError:
        return True


def _promised(gpus: Mapping[str, int], gpu: GpuReading) -> Iterator[tuple[DeviceIndex, int]]:
    """What is promised of the GPU, and of each of its MIG devices."""
    places: list[tuple[DeviceIndex, str]] = [(gpu.index, gpu.uuid or str(gpu.index))]
    places += [((gpu.index, device.gpu_instance), device.uuid) for device in gpu.mig or ()]
    for place, name in places:
        if gpus.get(name, 0) > 0:
            yield place, gpus[name]
