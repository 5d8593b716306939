"""A running job as it was read from its processes: ranks, job settings with their evidence, interpreter and folders."""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.secrets import mask_line
from vramtop.estimator.job.job_file.changes import replaces_model
from vramtop.estimator.readers.source.evidence import Finding, JobReading

from ..probe.probe_reader import ProbeSample
from ..snapshot.snapshot import GpuReading, MigReading
from ..sources.nvml.nvml_source import FIRST_READ_TIMEOUT_SECONDS, CallThread, shut_down
from ..storage.user_file import UserFile, data_file

# Parses CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES as CUDA and the container toolkit do.
#
# Sources: the CUDA C++ Programming Guide, "CUDA Environment Variables"; on repeated and mixed entries, which the
# guide leaves out, torch's ``_parse_visible_devices`` (torch/cuda/__init__.py).


DeviceOrder = Sequence[int | None] | None
"""NVML indices in the order in which CUDA numbers the GPUs; an entry None is unknown; None: the same order."""
_NUMBER = re.compile(r"\+?\d{1,9}(?!\d)")


def parse_visible_devices(
    text: str, order: DeviceOrder, gpus: Sequence[GpuReading] | None, mig_parents: Mapping[str, str]
) -> list[int | None]:
    """Return the NVML indices that CUDA_VISIBLE_DEVICES names; None for an entry whose GPU is unknown.

    The first invalid entry ends the list; a repeated entry empties it; entries of different kinds do not mix.

    Args:
        text: value of the variable.
        order: GPUs that the process could use without the variable.
        gpus: this machine's GPUs; None: they cannot be read.
        mig_parents: UUIDs of GPUs by the names of their MIG devices.
    """
    kind = entry_kind(text)
    devices: list[int | None] = []
    names: set[str] = set()
    for entry in map(str.strip, text.split(",")):
        number = _NUMBER.match(entry)
        if entry_kind(entry) != kind or (kind == "index" and number is None):
            break
        name = str(int(number[0])) if number else entry
        if name in names:
            return []
        names.add(name)
        device = find_device(entry, order, gpus, mig_parents)
        if device is None and kind != "MIG" and gpus is not None:
            break
        devices.append(device)
    return devices


def find_device(
    entry: str, order: DeviceOrder, gpus: Sequence[GpuReading] | None, mig_parents: Mapping[str, str]
) -> int | None:
    """Return the NVML index of the GPU that an entry names; None if there is no such GPU, or more than one."""
    entry = entry.strip()
    if entry.startswith("MIG-"):
        return _find_by_uuid(mig_parents[entry], gpus) if entry in mig_parents else None
    if entry.startswith("GPU-"):
        return _find_by_uuid(entry, gpus)
    number = _NUMBER.match(entry)
    if number is None:
        return None
    index = int(number[0])
    if order is None:
        return index
    return order[index] if index < len(order) else None


def entry_kind(text: str) -> str:
    """Return the kind of the first entry: ``GPU`` or ``MIG`` for a UUID, else ``index``."""
    text = text.strip()
    return text[:3] if text.startswith(("GPU-", "MIG-")) else "index"


def _find_by_uuid(prefix: str, gpus: Sequence[GpuReading] | None) -> int | None:
    found = [gpu.index for gpu in gpus or () if gpu.uuid and gpu.uuid.lower().startswith(prefix.lower())]
    return found[0] if len(found) == 1 else None


# The environment variables that decide which GPU a process uses, and the GPUs that its container was given.


MigParent = Callable[[str], str | None]
"""Maps the UUID of a MIG device to the UUID of its GPU; None: unknown."""
_MIG_NAME_BEFORE_R470 = re.compile(r"MIG-(GPU-[^/]+)/\d+/\d+")
"""Name of a MIG device before driver R470: UUID of the GPU, GPU instance and compute instance."""
_DEVICE_FILE = re.compile(r"nvidia\d+")


class GpuEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """The variables of a process's environment that decide which GPU it uses."""

    cuda_visible_devices: str | None = None
    cuda_device_order: str | None = None
    local_rank: int | None = None
    nvidia_visible_devices: str | None = None
    own_numbering: bool = False
    """The process runs in a container that vramtop does not run in, which numbers its GPUs from 0."""
    mig_parents: Mapping[str, str] = msgspec.field(default_factory=dict)
    """UUIDs of the GPUs by the names of their MIG devices, for the MIG devices in the variables."""

    @classmethod
    def from_environ(
        cls,
        environ: Mapping[str, str],
        *,
        local_rank: int | None,
        own_numbering: bool = False,
        mig_parent: MigParent = lambda _: None,
    ) -> "GpuEnvironment":
        """Read the variables of a process's environment.

        Args:
            environ: the environment with which the program started.
            local_rank: its rank on this machine; None: it has none.
            own_numbering: it runs in another container than vramtop, which numbers its GPUs from 0.
            mig_parent: asks the driver for the GPU of a MIG device; called once for each that is named.
        """
        visible, container = environ.get("CUDA_VISIBLE_DEVICES"), environ.get("NVIDIA_VISIBLE_DEVICES")
        named = {entry.strip() for entry in f"{visible},{container}".split(",") if entry.strip().startswith("MIG-")}
        parents = {name: old[1] if (old := _MIG_NAME_BEFORE_R470.match(name)) else mig_parent(name) for name in named}
        return cls(
            cuda_visible_devices=visible,
            cuda_device_order=environ.get("CUDA_DEVICE_ORDER"),
            local_rank=local_rank,
            nvidia_visible_devices=container,
            own_numbering=own_numbering,
            mig_parents={name: parent for name, parent in parents.items() if parent is not None},
        )


def has_own_gpu_numbering(root: Path | None, *, here: Path = Path("/")) -> bool:
    """Return True if a process runs in a container that was given only some of this machine's GPUs.

    Args:
        root: root folder of the process as it is reached from here; None: the process shares ours.
        here: our own root folder.
    """
    if root is None:
        return False
    theirs, ours = _device_files(root), _device_files(here)
    return not ours or theirs != ours


def nvml_mig_parent(uuid: str) -> str | None:
    """Ask the driver for the UUID of the GPU that a MIG device is a part of; None if it does not know or hangs."""
    thread = CallThread()
    thread.run(lambda: _mig_parent(uuid))
    thread.stop()
    parent: str | None = thread.result() if thread.wait(FIRST_READ_TIMEOUT_SECONDS) else None
    return parent


def _mig_parent(uuid: str) -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        parent: str = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device))
    except pynvml.NVMLError:
        return None
    else:
        return parent
    finally:
        shut_down(pynvml)


def _device_files(root: Path) -> frozenset[str]:
    try:
        return frozenset(name for name in os.listdir(root / "dev") if _DEVICE_FILE.fullmatch(name))  # noqa: PTH208
    except OSError:
        return frozenset()


# Determines the GPU of a process: where NVML lists it, else where its environment variables put it.


Certainty = Literal["certain", "likely", "unsure"]
_NO_GPUS = ("none", "void")
"""Values of NVIDIA_VISIBLE_DEVICES for a container without GPUs."""


class GpuAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU of a process."""

    gpu: int | None
    """NVML index; None: unknown, or the process has none."""
    origin: str
    """Where this was read: ``NVML``, ``CUDA_VISIBLE_DEVICES, LOCAL_RANK``."""
    certainty: Certainty
    """Certain: the driver reports it. Likely: all launchers follow this convention. Unsure: see ``note``."""
    note: str | None = None
    other_gpus: tuple[int, ...] = ()
    """Other GPUs on which the process holds memory."""


def assign_gpu(
    environment: GpuEnvironment,
    gpus: Sequence[GpuReading] | None,
    *,
    pid: int,
    start_time: float | None = None,
) -> GpuAssignment:
    """Return the GPU of a process.

    Args:
        environment: variables of its environment.
        gpus: this machine's GPUs; None: they cannot be read, and an index is taken as it is.
        pid: pid of the process.
        start_time: its start time, which tells it from a later process with the same pid.
    """
    used = _used_bytes_by_gpu(gpus or (), pid, start_time)
    from_environment = _assign_by_environment(environment, gpus)
    if not used:
        return from_environment
    known = None not in used.values()
    own = from_environment.gpu
    if known or own not in used:
        own = max(used, key=lambda index: used[index] or 0)
    if len(used) == 1:
        return GpuAssignment(gpu=own, origin="NVML", certainty="certain")
    unknown = "it holds memory on several GPUs, and the driver does not report how much on each"
    return GpuAssignment(
        gpu=own,
        origin="NVML",
        certainty="likely" if known else "unsure",
        note="it holds memory on several GPUs; the GPU where it holds the most is used" if known else unknown,
        other_gpus=tuple(index for index in used if index != own),
    )


def visible_gpus(environment: GpuEnvironment, gpus: Sequence[GpuReading]) -> tuple[tuple[int, ...], str | None]:
    """Return the GPUs that a process with this environment may use, in the order in which CUDA numbers them for it.

    Returns:
        NVML indices (of all GPUs if CUDA_VISIBLE_DEVICES is not set), and why they are uncertain.
    """
    text = environment.cuda_visible_devices
    if text is None:
        return tuple(gpu.index for gpu in gpus), None
    devices = parse_visible_devices(text, [gpu.index for gpu in gpus], gpus, environment.mig_parents)
    uncertainty = None if entry_kind(text) != "index" else _order_uncertainty(environment, gpus)
    return tuple(index for index in devices if index is not None), uncertainty


def visible_mig_devices(environment: GpuEnvironment, gpus: Sequence[GpuReading]) -> tuple[str, ...]:
    """Return the UUIDs of the MIG devices that CUDA_VISIBLE_DEVICES names; empty if it names whole GPUs."""
    uuids = {name: device.uuid for gpu in gpus for device in gpu.mig or () for name in _mig_names(gpu, device)}
    named = [entry.strip().lower() for entry in (environment.cuda_visible_devices or "").split(",")]
    return tuple(dict.fromkeys(uuids[name] for name in named if name in uuids))


def _mig_names(gpu: GpuReading, device: MigReading) -> tuple[str, str]:
    before_r470 = f"MIG-{gpu.uuid}/{device.gpu_instance}/{device.compute_instance}"
    return device.uuid.lower(), before_r470.lower()


def _used_bytes_by_gpu(gpus: Sequence[GpuReading], pid: int, start_time: float | None) -> dict[int, int | None]:
    return {
        gpu.index: process.used_bytes
        for gpu in gpus
        for process in gpu.processes or ()
        if process.pid == pid and (None in (start_time, process.start_time) or process.start_time == start_time)
    }


def _assign_by_environment(environment: GpuEnvironment, gpus: Sequence[GpuReading] | None) -> GpuAssignment:
    visible, local_rank = environment.cuda_visible_devices, environment.local_rank
    variables = {
        "NVIDIA_VISIBLE_DEVICES": environment.nvidia_visible_devices if environment.own_numbering else None,
        "CUDA_VISIBLE_DEVICES": visible,
        "LOCAL_RANK": local_rank,
    }
    origin = ", ".join(name for name, value in variables.items() if value is not None) or "nothing"

    def assigned(gpu: int | None, note: str | None = None, *, certainty: Certainty | None = None) -> GpuAssignment:
        return GpuAssignment(gpu=gpu, origin=origin, certainty=certainty or ("unsure" if note else "likely"), note=note)

    devices, uncertainty = _container_order(environment, gpus)
    by_uuid = visible is not None and entry_kind(visible) != "index"
    if visible is not None:
        devices = parse_visible_devices(visible, devices, gpus, environment.mig_parents)
        if not devices:
            hidden = visible.strip() in ("", "-1")  # the usual ways to hide all GPUs
            note = f"CUDA_VISIBLE_DEVICES is {visible!r}, which names no GPU here"
            return assigned(None, note, certainty="likely" if hidden else "unsure")
    at = 0 if local_rank is None or (devices is not None and len(devices) == 1) else local_rank
    if devices is not None and at >= len(devices):
        return assigned(None, f"LOCAL_RANK is {at}, and it sees {len(devices)} GPUs")
    gpu = at if devices is None else devices[at]
    if uncertainty is not None and not by_uuid:
        return assigned(None, uncertainty)
    if gpu is None:
        return assigned(None, f"vramtop cannot find the GPU {visible!r}")
    uncertainty = None if by_uuid else _order_uncertainty(environment, gpus)
    if uncertainty is None and local_rank is None and (devices is None or len(devices) > 1):
        uncertainty = "it is not known which of its visible GPUs it uses; this is the first"
    return assigned(gpu, uncertainty)


def _container_order(environment: GpuEnvironment, gpus: Sequence[GpuReading] | None) -> tuple[DeviceOrder, str | None]:
    """Return the GPUs that the process could use without CUDA_VISIBLE_DEVICES, and why they are unknown.

    Inside a container they are numbered from 0, in NVML's order, over those that the container was given.
    """
    order = None if gpus is None else [gpu.index for gpu in gpus]
    given = (environment.nvidia_visible_devices or "").strip()
    if not environment.own_numbering or given == "all":
        return order, None
    if not given or given in _NO_GPUS or gpus is None:
        return None, "it runs in a container, and the container's GPUs are not known"
    indices = {find_device(entry.partition(":")[0], order, gpus, environment.mig_parents) for entry in given.split(",")}
    if None in indices:
        return None, f"it runs in a container that was given {given!r}, which names no GPU here"
    return sorted(index for index in indices if index is not None), None


def _order_uncertainty(environment: GpuEnvironment, gpus: Sequence[GpuReading] | None) -> str | None:
    """Return why CUDA's index of a GPU may differ from NVML's: by default CUDA puts the fastest GPU first."""
    if environment.cuda_device_order == "PCI_BUS_ID" or len({gpu.name for gpu in gpus or ()}) <= 1:
        return None
    return "CUDA lists the fastest of these unequal GPUs first, but NVML does not (CUDA_DEVICE_ORDER is not PCI_BUS_ID)"


class RankJson(TypedDict):
    """The process of one rank on this machine."""

    pid: int
    """Its process id."""
    rank: int | None
    """Rank over all machines; null: a single process."""
    local_rank: int | None
    """Rank on this machine; null: a single process, or its environment does not say it."""
    gpu: int | None
    """NVML index of its GPU; null: unknown, or it has none."""
    gpu_from: str
    """Where the GPU was read: `NVML`, or variables of its environment."""
    gpu_sure: Certainty
    """How certain the GPU is: `certain` if the driver reports it."""
    gpu_hint: str | None
    """GPU that its environment names, an index or a UUID; null: it names none."""


class AttachmentJson(TypedDict):
    """A running job, as it was read from its processes."""

    pid: int
    """The process that was asked for."""
    ranks: list[RankJson]
    """The ranks of its run on this machine."""
    launcher: str | None
    """`torchrun`, `accelerate`, `deepspeed`, `trl`; null: started directly."""
    inside: list[str]
    """The batch job and container that it runs in, in words."""
    probe: bool
    """It runs with the probe."""
    command: str
    """Command line of the training program, without secrets."""
    versions: dict[str, str]
    """Versions of the installed frameworks, by name."""
    evidence: dict[str, str]
    """Where the value of each setting was read, by job key."""
    missing: list[str]
    """Job keys that are required and could not be read."""
    refused: dict[str, str]
    """Why values that were read are not taken, by job key."""
    warnings: list[str]
    """What could not be read, and what was read and not understood; one sentence each."""


class RankProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The process of one rank on this machine."""

    pid: int
    start_time: float
    """Unix seconds; with the pid it identifies the process."""
    rank: int | None
    """Rank over all machines; None for a single process."""
    local_rank: int | None
    gpu_hint: str | None
    """GPU that its environment names, an index or a UUID as in CUDA_VISIBLE_DEVICES. NVML is more reliable."""
    gpu_environment: GpuEnvironment
    """Variables of its environment that decide its GPU."""
    gpu_assignment: GpuAssignment
    """Its GPU, as far as it was known when the ranks were assigned."""

    def to_json(self) -> RankJson:
        """Return one entry of ``ranks`` in ``vramtop attach --json``."""
        return {
            "pid": self.pid,
            "rank": self.rank,
            "local_rank": self.local_rank,
            "gpu": self.gpu_assignment.gpu,
            "gpu_from": self.gpu_assignment.origin,
            "gpu_sure": self.gpu_assignment.certainty,
            "gpu_hint": self.gpu_hint,
        }


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """A running job."""

    pid: int
    """The requested process."""
    start_time: float
    ranks: tuple[RankProcess, ...]
    reading: JobReading
    launcher: str | None
    """``torchrun``, ``accelerate``, ``deepspeed``, ``trl``; None: started directly."""
    cwd: Path | None
    """Its working folder, as it is reached from here."""
    command: str
    """Command line of the training program, without secrets."""
    interpreter: Path | None
    worker_python: str | None
    """The interpreter, if it is safe to run: the process belongs to this user and is not in a container."""
    versions: Mapping[str, str]
    """Versions of the installed frameworks, by name."""
    estimate_environ: Mapping[str, str]
    """Variables that an estimate depends on: the folders of its Hugging Face cache and its HOME, as they are reached
    from here, and the settings of the allocator."""
    inside: tuple[str, ...]
    """The batch job and container that it runs in: ``Slurm job 4711 (sft)``, ``Docker container 0123456789ab``."""
    probe: ProbeSample | None
    """What the program reports, if it runs with the probe."""
    warnings: tuple[str, ...]
    """What could not be read, and what was read and not understood; one sentence each."""

    def with_gpu_assignments(self, gpus: Sequence[GpuReading] | None) -> "Attachment":
        """Return a copy in which every rank has its GPU: from NVML, else from its environment.

        Args:
            gpus: this machine's GPUs now; None: they cannot be read.
        """
        ranks = (
            replace(
                rank,
                gpu_assignment=assign_gpu(rank.gpu_environment, gpus, pid=rank.pid, start_time=rank.start_time),
            )
            for rank in self.ranks
        )
        return replace(self, ranks=tuple(ranks))

    def to_json(self) -> AttachmentJson:
        """Return the fields of ``vramtop attach --json`` that need no estimate."""
        return {
            "pid": self.pid,
            "ranks": [rank.to_json() for rank in self.ranks],
            "launcher": self.launcher,
            "inside": list(self.inside),
            "probe": self.probe is not None,
            "command": self.command,
            "versions": dict(self.versions),
            "evidence": self.reading.evidence(),
            "missing": list(self.reading.missing),
            "refused": dict(self.reading.refused),
            "warnings": list(self.warnings),
        }


# The settings that a user filled in for a run, saved by its command line, so that they are not asked for again.
#
# One JSON file in the user's data folder, readable by the user alone. Command lines are stored as digests, without
# their secrets: a new token does not change the run. Several dashboards may write at once; an unreadable file is set
# aside, never overwritten.


Reread = Callable[[Mapping[str, Any]], Attachment]
_VERSION = 1
_MAX_RUNS = 500
"""About 100 kB; the runs whose latest answer is oldest are dropped first."""
_LOCAL_RANK_OPTION = re.compile(r"\s--local[_-]rank[= ]\d+")
"""The one argument in which the ranks of a run differ; DeepSpeed's launcher and torch's old one add it."""
_FOREIGN_ROOT = re.compile(r"^/proc/\d+/root(?=/)")


class SavedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the user filled in."""

    value: Any
    """Value of a dotted job key; for ``lora`` the whole table, or None for no adapters."""
    given: float
    """Unix seconds."""


_Runs = dict[str, dict[str, SavedAnswer]]
"""Answers by run key and job key."""


class SavedAnswers(msgspec.Struct, frozen=True):
    """The file of answers.

    Args:
        path: the file; None: ``answers.json`` in the user's data folder (``$XDG_DATA_HOME/vramtop``).
        clock: returns Unix seconds.
    """

    path: Path | None = None
    clock: Callable[[], float] = time.time

    def load(self, run: str) -> Mapping[str, SavedAnswer]:
        """Return the answers for a run (see ``run_key``), by job key.

        Raises:
            CannotTellError: the file cannot be read.
        """
        return self._file.read().get(run, {})

    def save(self, run: str, values: Mapping[str, Any]) -> str | None:
        """Add these values to the answers for a run.

        Returns:
            A sentence if an unreadable file was set aside.

        Raises:
            CannotTellError: the file cannot be written.
        """
        added = {key: SavedAnswer(value=value, given=self.clock()) for key, value in values.items()}
        return self._file.change(lambda runs: _limited({**runs, run: {**runs.get(run, {}), **added}}))

    def delete(self, run: str, keys: Iterable[str] | None = None) -> str | None:
        """Delete the values for these keys of a run, or all of them.

        Returns:
            A sentence if an unreadable file was set aside.

        Raises:
            CannotTellError: the file cannot be written.
        """
        deleted = None if keys is None else set(keys)

        def delete(runs: _Runs) -> _Runs:
            known = runs.get(run, {})
            kept = {} if deleted is None else {key: answer for key, answer in known.items() if key not in deleted}
            return _limited({**runs, run: kept})

        return self._file.change(delete)

    @property
    def _file(self) -> UserFile[_Runs]:
        path = self.path or data_file("answers.json")
        return UserFile(path, kind=_Runs, empty=dict, version=_VERSION, description="the settings you gave for runs")


def run_key(attachment: Attachment) -> str:
    """Return a digest of a run's command line and folder; it is the same for all of its ranks."""
    command = mask_line(_LOCAL_RANK_OPTION.sub("", attachment.command))
    folder = _FOREIGN_ROOT.sub("", str(attachment.cwd or ""))
    return hashlib.sha256(f"{folder}\0{command}".encode(errors="surrogatepass")).hexdigest()[:32]


def apply_answers(
    attachment: Attachment, answers: Mapping[str, SavedAnswer], *, reread: Reread | None = None
) -> Attachment:
    """Return the attachment with the user's answers in place of what was read, unless they make no job.

    Args:
        attachment: what was read.
        answers: the answers, by job key.
        reread: reads the run again, given another model; without it, what follows from the old one stays.
    """
    reading = attachment.reading
    given = {key: _finding(reading, key, answer) for key, answer in answers.items()}
    if not given:
        return attachment
    values = {key: answer.value for key, answer in answers.items()}
    if replaces_model(values) and values.get("model.id") != reading.value("model.id") and reread is not None:
        attachment = reread(values)
        reading = attachment.reading
    tables = {key for key in given if "." not in key}
    kept = [f for f in reading.findings if f.key not in given and f.key.partition(".")[0] not in tables]
    missing = tuple(key for key in reading.missing if key not in given)
    filled = replace(reading, findings=(*kept, *given.values()), missing=missing)
    try:
        filled.job()
    except InputError as error:
        warning = f"The values you gave for this command line before are ignored: {error.message}"
        return replace(attachment, warnings=(*attachment.warnings, warning))
    return replace(attachment, reading=filled)


def with_saved_answers(attachment: Attachment, answers: SavedAnswers, *, reread: Reread | None = None) -> Attachment:
    """Return the attachment with the saved answers for its command line; a warning is added if they cannot be read.

    Args:
        attachment: what was read.
        answers: the file of answers.
        reread: reads the run again, given another model; without it, what follows from the old one stays.
    """
    try:
        return apply_answers(attachment, answers.load(run_key(attachment)), reread=reread)
    except CannotTellError as error:
        return replace(attachment, warnings=(*attachment.warnings, error.message))


def _finding(reading: JobReading, key: str, answer: SavedAnswer) -> Finding:
    day = time.strftime("%Y-%m-%d", time.localtime(answer.given))
    found = next((finding for finding in reading.findings if finding.key == key), None)
    differs = found is not None and found.value != answer.value
    instead = f", instead of {found.value} ({found.origin})" if found is not None and differs else ""
    return Finding(key=key, value=answer.value, origin=f"you, on {day}{instead}", written=True)


def _limited(runs: _Runs) -> _Runs:
    latest = {run: max(answer.given for answer in answers.values()) for run, answers in runs.items() if answers}
    kept = sorted(latest, key=latest.__getitem__, reverse=True)[:_MAX_RUNS]
    return {run: runs[run] for run in kept}
