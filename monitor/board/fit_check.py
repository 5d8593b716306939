"""Will a job fit: its budget per rank against what the GPUs can give."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from vramtop.estimator.budget.budget import Budget, RankPeak
from vramtop.estimator.common.sizes import format_gib

from ..host.host_memory import HostRam, HostVerdict, host_verdict
from ..snapshot.mig_devices import mig_label
from ..snapshot.snapshot import DeviceIndex, GpuReading, MigReading, Snapshot

if TYPE_CHECKING:
    from vramtop.estimator.job.gpu_catalogue import Gpu

    from .serving_fit import ServingFit

Verdict = Literal["fits", "tight", "does_not_fit", "unknown"]

_NO_MIG_DEVICE = "is in MIG mode and has no MIG device (nvidia-smi mig -cgi PROFILE -C makes one)"
_MIG_JOINS_NOTHING = "is for jobs of one rank: a program sees one MIG device and no GPU beside it"
"""CUDA enumerates a single compute instance, and no whole GPU along with one (NVIDIA MIG User Guide, CUDA Device
Enumeration). NCCL 2.31 joins ranks that each see one of their own, as an experiment (NVIDIA/nccl issue 1716)."""

_OUT_OF_USE = {
    "GPU_IS_LOST": "no longer answers",
    "RESET_REQUIRED": "must be reset before it can be used again",
    "NOT_LISTED": "is no longer listed by the driver",
    "NO_PERMISSION": "may not be opened by this user",
}
"""Faults with which no program can be started on a GPU."""
BEST_FIRST: tuple[Verdict, ...] = ("fits", "tight", "unknown", "does_not_fit")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCapacity:
    """What one GPU can give, or one MIG device of it."""

    index: int
    """Of the GPU, as NVML counts."""
    uuid: str | None
    """Of the GPU, or of the MIG device: what CUDA_VISIBLE_DEVICES takes."""
    name: str | None
    """Of the card."""
    total_bytes: int | None
    free_bytes: int | None
    """What NVML calls free: never total less used, which would count the driver's reserve in."""
    committed_bytes: int = 0
    """What running jobs have not yet taken of their budgets, and what earlier pending jobs were promised."""
    unusable_reason: str | None = None
    """Why no program can be started there at all, whatever is free: ``is in exclusive-process mode and in use``."""

    unread_reason: str | None = None
    """Why it is not known what is free; None: it is known, or nobody says why."""
    reserved_bytes: int = 0
    """What the driver keeps of the total, which CUDA does not count in it; 0 where that is not known."""
    mig: MigReading | None = None
    """The MIG device; None: it is a whole GPU."""
    mig_label: str | None = None
    """How the dashboard calls the MIG device: ``0:3``."""

    @property
    def place(self) -> DeviceIndex:
        """Whose memory it is; MIG devices of one GPU instance share theirs."""
        return self.index if self.mig is None else (self.index, self.mig.gpu_instance)

    @property
    def gpu_type(self) -> "Gpu | None":
        """The catalogue's entry; of a MIG device, that of its GPU."""
        from vramtop.estimator.job.gpu_catalogue import match_nvml_name  # not at start-up

        return match_nvml_name(self.name, None if self.mig else self.total_bytes) if self.name else None

    @property
    def cuda_device(self) -> str:
        """As CUDA_VISIBLE_DEVICES names it."""
        return self.uuid or str(self.index)

    @property
    def label(self) -> str:
        """For people: ``GPU 0``, ``GPU 0:3 (MIG 1g.10gb)``."""
        if self.mig is None:
            return f"GPU {self.index}"
        return f"GPU {self.mig_label or self.index} ({' '.join(filter(None, ('MIG', self.mig.profile)))})"

    @property
    def available_bytes(self) -> int | None:
        """Free less committed, not below zero, and 0 where it is closed; None when free is unknown."""
        if self.unusable_reason:
            return 0
        return None if self.free_bytes is None else max(0, self.free_bytes - self.committed_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceVerdict:
    """Whether one rank of the job fits on one GPU."""

    device: DeviceCapacity
    verdict: Verdict
    need_bytes: int
    """The rank's expected peak."""

    @property
    def margin_bytes(self) -> int | None:
        """What is left beyond the expected peak; negative where it does not fit; None where nothing is known."""
        available = self.device.available_bytes
        return None if available is None else available - self.need_bytes

    @property
    def shortfall_bytes(self) -> int:
        """How much the expected peak lacks; 0 where it fits or nothing is known."""
        return max(0, -(self.margin_bytes or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """Whether the whole job fits, and where."""

    verdict: Verdict
    gpus: tuple[DeviceVerdict, ...]
    """Every GPU that was considered, in the order given."""
    rank_devices: tuple[DeviceCapacity, ...]
    """The GPUs for its ranks, in the order of the ranks; the best there is when it does not fit."""
    margin_bytes: int | None
    """Room left beyond the expected peak on the fullest chosen GPU; negative when it does not fit.

    None when what one of them can give is not known, or there is none."""
    sentence: str
    """The verdict in words."""
    host: HostVerdict | None = None
    """Whether the machine's RAM is enough; None: nobody looked."""
    serving: "ServingFit | None" = None
    """What vLLM makes of the fullest chosen GPU; None: it does not run the job, or there is no such GPU."""

    @property
    def placement(self) -> tuple[int, ...]:
        """Indices of the GPUs for its ranks; of a MIG device, that of its GPU."""
        return tuple(room.index for room in self.rank_devices)

    @property
    def cuda_devices(self) -> tuple[str, ...]:
        """What CUDA_VISIBLE_DEVICES has to name for its ranks."""
        return tuple(room.cuda_device for room in self.rank_devices)

    @property
    def bytes_by_device(self) -> tuple[tuple[DeviceCapacity, int], ...]:
        """What the job would take of each chosen GPU."""
        return tuple((gpu.device, gpu.need_bytes) for gpu in self.gpus if gpu.device in self.rank_devices)

    def to_json(self) -> dict[str, Any]:
        """The contract's fields of ``vramtop fit --json`` that concern the GPUs."""
        return {
            "verdict": self.verdict,
            "gpus": [
                {
                    "index": gpu.device.index,
                    "uuid": gpu.device.uuid,
                    "name": gpu.device.name,
                    "free_bytes": gpu.device.free_bytes,
                    "committed_bytes": gpu.device.committed_bytes,
                    "available_bytes": gpu.device.available_bytes,
                    "verdict": gpu.verdict,
                    "closed": gpu.device.unusable_reason,
                    "unread": gpu.device.unread_reason,
                    **({"mig": _mig_json(gpu.device.mig)} if gpu.device.mig else {}),
                }
                for gpu in self.gpus
            ],
            "placement": list(self.placement),
            "placement_uuids": [room.uuid for room in self.rank_devices],
            "margin_bytes": self.margin_bytes,
            **({"host": self.host.to_json()} if self.host else {}),
            **({"serving": self.serving.to_json()} if self.serving else {}),
        }


def check_fit(budget: Budget, rooms: Sequence[DeviceCapacity]) -> FitResult:
    """Place every rank of the budget's job on a GPU of its own: the one that needs most on the roomiest.

    Where all ranks fit somehow, they fit so. A GPU that gets no rank is judged by the neediest one. Several ranks are
    placed on whole GPUs only.
    """
    if len(budget.ranks) > 1:
        rooms = [
            replace(room, unusable_reason=room.unusable_reason or _MIG_JOINS_NOTHING) if room.mig else room
            for room in rooms
        ]
    if budget.serving is not None:
        from .serving_fit import check_serving_fit  # it knows this module

        return check_serving_fit(budget.serving, len(budget.ranks), rooms)
    needs = budget.ranks
    neediest = max(needs, key=lambda need: need.device_bytes)
    judged = _place(needs, placeable_devices(rooms, len(needs)))
    verdicts = {id(v.device): v for v in judged.values()}  # a hash of all of a room's fields takes longer than this
    chosen = [judged[rank] for rank in sorted(judged)]
    if len(chosen) < len(needs):
        verdict: Verdict = "does_not_fit"
    else:
        verdict = max((v.verdict for v in chosen), key=BEST_FIRST.index)
    margins = [v.margin_bytes for v in chosen]
    known = [margin for margin in margins if margin is not None]
    return FitResult(
        verdict=verdict,
        gpus=tuple(verdicts.get(id(room)) or _judge(neediest, room) for room in rooms),
        rank_devices=tuple(v.device for v in chosen),
        margin_bytes=min(known) if known and len(known) == len(chosen) else None,
        sentence=_sentence(verdict, needs, chosen, rooms),
    )


def placeable_devices(rooms: Sequence[DeviceCapacity], ranks: int) -> list[DeviceCapacity]:
    """The rooms that so many ranks can be placed on, together."""
    return [room for room in rooms if room.mig is None or ranks == 1]


def device_count_text(count: int, rooms: Sequence[DeviceCapacity]) -> str:
    """For a job of several ranks: so few GPUs can be joined."""
    are = {0: "are none", 1: "is 1"}.get(count, f"are {count}")
    return f"there {are} here" + (f"; a MIG device {_MIG_JOINS_NOTHING}" if any(room.mig for room in rooms) else "")


def with_host_memory(found: FitResult, budget: Budget, room: HostRam, *, ranks: int) -> FitResult:
    """The verdict with the host's RAM counted in: a job that fits the GPUs and not their host does not fit.

    Args:
        found: whether it fits the GPUs.
        budget: the job's; without a ``host`` nothing changes.
        room: the machine's RAM.
        ranks: of the job on that machine.
    """
    if budget.host is None:
        return found
    host = host_verdict(budget.host, room, ranks=ranks)
    if host.verdict == "does_not_fit" or (host.verdict == "tight" and found.verdict == "fits"):
        return replace(found, host=host, verdict=host.verdict, sentence=f"{found.sentence}; {host.sentence}")
    return replace(found, host=host)


def device_capacities(
    snapshot: Snapshot, committed: Mapping[DeviceIndex, int], only: Iterable[int | str] | None = None
) -> tuple[DeviceCapacity, ...]:
    """What the GPUs of a snapshot can give; in MIG mode, what each of their MIG devices can.

    Args:
        snapshot: the machine now.
        committed: bytes that are spoken for but not yet taken; what is of a GPU as a whole counts for each of its
            MIG devices, as it is not known which it will be.
        only: GPUs to consider, by index, and MIG devices, by uuid; all when left out.
    """
    wanted = None if only is None else set(only)
    rooms = (room for gpu in snapshot.gpus for room in _rooms_on(gpu))
    return tuple(
        replace(room, committed_bytes=sum(committed.get(place, 0) for place in {room.index, room.place}))
        for room in rooms
        if wanted is None or room.index in wanted or (room.mig and room.uuid in wanted)
    )


def _rooms_on(gpu: GpuReading) -> Iterator[DeviceCapacity]:
    closed = _closed(gpu)
    if not gpu.mig:
        if gpu.mig is not None:
            reason = gpu.reason("mig")
            closed = _NO_MIG_DEVICE if reason is None else f"is in MIG mode, and {reason}"
        yield DeviceCapacity(
            index=gpu.index,
            uuid=gpu.uuid,
            name=gpu.name,
            total_bytes=gpu.total_bytes,
            free_bytes=None if gpu.is_stale else gpu.free_bytes,
            unread_reason=gpu.reason("free_bytes") if gpu.is_stale or gpu.free_bytes is None else None,
            reserved_bytes=gpu.reserved_bytes or 0,
            unusable_reason=closed,
        )
    instances = [device.gpu_instance for device in gpu.mig or ()]
    for device in gpu.mig or ():
        yield DeviceCapacity(
            index=gpu.index,
            uuid=device.uuid,
            name=gpu.name,
            total_bytes=device.total_bytes,
            free_bytes=None if gpu.is_stale else device.free_bytes,
            mig=device,
            mig_label=mig_label(gpu.index, device, shares_memory=instances.count(device.gpu_instance) > 1),
            unusable_reason=closed,
        )


def _mig_json(device: MigReading) -> dict[str, Any]:
    return {
        "profile": device.profile,
        "gpu_instance": device.gpu_instance,
        "compute_instance": device.compute_instance,
        "total_bytes": device.total_bytes,
    }


def _closed(gpu: GpuReading) -> str | None:
    for fault in gpu.faults:
        if fault.field is None and fault.code in _OUT_OF_USE:
            return _OUT_OF_USE[fault.code]
    if gpu.compute_mode == "prohibited":
        return "takes no compute programs (compute mode prohibited)"
    held = any(kind != "graphics" for process in gpu.processes or () for kind in process.kinds)
    if gpu.compute_mode == "exclusive_process" and held and gpu.mig is None:
        return "takes one program at a time (compute mode exclusive-process) and has one"
    return None


def _place(needs: Sequence[RankPeak], rooms: Sequence[DeviceCapacity]) -> dict[int, DeviceVerdict]:
    """A GPU for each rank, as far as there are any; those of unknown room only where the others do not do."""
    by_need = sorted(range(len(needs)), key=lambda rank: -needs[rank].device_bytes)
    known = sorted((r for r in rooms if r.available_bytes is not None), key=lambda r: -(r.available_bytes or 0))
    unknown = [room for room in rooms if room.available_bytes is None]
    first: dict[int, DeviceVerdict] = {}
    for count in range(len(unknown) + 1):
        chosen = [*unknown[:count], *known, *unknown[count:]]
        placed = {rank: _judge(needs[rank], room) for rank, room in zip(by_need, chosen, strict=False)}
        if all(verdict.verdict != "does_not_fit" for verdict in placed.values()):
            return placed
        first = first or placed
    return first


def _judge(need: RankPeak, room: DeviceCapacity) -> DeviceVerdict:
    available = room.available_bytes
    if available is None:
        return DeviceVerdict(device=room, verdict="unknown", need_bytes=need.device_bytes)
    if need.device_bytes > available:
        return DeviceVerdict(device=room, verdict="does_not_fit", need_bytes=need.device_bytes)
    fits = need.high_bytes <= available
    return DeviceVerdict(device=room, verdict="fits" if fits else "tight", need_bytes=need.device_bytes)


def _sentence(
    verdict: Verdict, needs: Sequence[RankPeak], chosen: Sequence[DeviceVerdict], rooms: Sequence[DeviceCapacity]
) -> str:
    ranks, sizes = len(needs), sorted({need.device_bytes for need in needs})
    need = (
        f"{format_gib(sizes[-1])} GiB" if len(sizes) == 1 else f"{format_gib(sizes[0])} to {format_gib(sizes[-1])} GiB"
    )
    each = f"{ranks} × {need}" if ranks > 1 else need
    if len(chosen) < ranks:
        return f"needs {ranks} GPUs ({each}), and {device_count_text(len(chosen), rooms)}"
    where = "GPU " + ", ".join(v.device.label.removeprefix("GPU ") for v in chosen)
    match verdict:
        case "fits":
            return f"needs {each} and fits on {where}"
        case "tight":
            most = max(need.high_bytes for need in needs)
            return f"needs {each}: expected to fit on {where}, but may take {format_gib(most)} GiB"
        case "does_not_fit":
            worst = max(chosen, key=lambda v: v.shortfall_bytes)
            if worst.device.unusable_reason:
                return f"needs {each}; {worst.device.label} {worst.device.unusable_reason}"
            return f"needs {each}; {worst.device.label} is short of {format_gib(worst.shortfall_bytes)} GiB"
        case "unknown":
            unread = next(
                (v.device.unread_reason for v in chosen if v.verdict == "unknown" and v.device.unread_reason), None
            )
            return f"needs {each}; how much {where} can give is not known" + (f": {unread}" if unread else "")
