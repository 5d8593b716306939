"""Fit: whether a pending job fits the GPUs and the host's RAM, and on which GPUs its ranks are placed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import msgspec

from vramtop.estimator.budget import Budget, FieldsOf, HostNeed, HostNeedJson, RankPeak, RankPeaks, ServingNeed
from vramtop.estimator.common.errors import Verdict  # noqa: TC001 - schemas look types up at run time
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import UNSEEN_BYTES, format_gib, size_text

from ..host.available_ram import HostRam, host_verdict
from ..snapshot.faults import NOT_LISTED
from ..snapshot.snapshot import gpu_list, mig_label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vramtop.estimator.job.gpu_catalogue import Gpu

    from ..host.available_ram import HostVerdict
    from ..snapshot.snapshot import DeviceIndex, GpuReading, MigReading, Snapshot

# Memory that each GPU or MIG device has available to place a rank on.


_NO_MIG_DEVICE = "is in MIG mode and has no MIG device (nvidia-smi mig -cgi PROFILE -C makes one)"
_UNUSABLE_FAULTS = {
    "GPU_IS_LOST": "no longer answers",
    "RESET_REQUIRED": "must be reset before it can be used again",
    NOT_LISTED: "is no longer listed by the driver",
    "NO_PERMISSION": "cannot be opened by this user",
}
"""Faults of a GPU on which no program can be started, by the driver's code."""


class DeviceCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """Memory available on one GPU, or on one MIG device of it."""

    index: int
    """NVML index of the GPU; of the first one of several that are alike."""
    uuid: str | None
    """UUID of the GPU or of the MIG device, as CUDA_VISIBLE_DEVICES takes it."""
    name: str | None
    """Product name of the GPU."""
    total_bytes: int | None
    free_bytes: int | None
    """Free memory as NVML reports it; total less used would also count the memory reserved by the driver."""
    committed_bytes: int = 0
    """Free memory that running jobs have yet to allocate, and memory already assigned to earlier pending jobs."""
    unusable_reason: str | None = None
    """Why no program can be started here, regardless of free memory; None: programs can be started."""
    unread_reason: str | None = None
    """Why ``free_bytes`` is unknown; None: it is known, or no reason was reported."""
    reserved_bytes: int = 0
    """Part of the total that the driver reserves and CUDA does not count; 0 if unknown."""
    mig: MigReading | None = None
    """The MIG device; None: a whole GPU."""
    mig_label: str | None = None
    """Name of the MIG device on the dashboard: ``0:3``."""
    count: int = 1
    """GPUs that are alike, with consecutive indices: those of a machine that is described rather than read."""
    shares_host_memory: bool = False
    """It has no memory of its own: its total is the machine's RAM (GB10, Jetson)."""
    growth: str | None = None
    """What will take the free memory, in a sentence: ``sft grows, GPU 0 full in about 10 min``; None: nothing grows."""

    @property
    def device_index(self) -> DeviceIndex:
        """Index of the GPU or GPU instance that holds the memory; MIG devices of one instance share it."""
        return self.index if self.mig is None else (self.index, self.mig.gpu_instance)

    @property
    def gpu_type(self) -> Gpu | None:
        """Catalogue entry of the GPU; for a MIG device, of the GPU that it is a part of."""
        from vramtop.estimator.job.gpu_catalogue import match_nvml_name  # not at start-up

        return match_nvml_name(self.name, None if self.mig else self.total_bytes) if self.name else None

    @property
    def cuda_device(self) -> str:
        """Entry for CUDA_VISIBLE_DEVICES."""
        return self.uuid or str(self.index)

    @property
    def label(self) -> str:
        """Name in sentences: ``GPU 0``, ``GPU 0-63``, ``GPU 0:3 (MIG 1g.10gb)``."""
        if self.mig is None:
            return f"GPU {self.numbers}"
        return f"GPU {self.mig_label or self.index} ({' '.join(filter(None, ('MIG', self.mig.profile)))})"

    @property
    def indices(self) -> range:
        """NVML index; of several that are alike, their indices."""
        return range(self.index, self.index + self.count)

    @property
    def numbers(self) -> str:
        """Index, or indices: ``0-63``."""
        return gpu_list([self.indices])

    def split(self, count: int) -> tuple[DeviceCapacity, DeviceCapacity | None]:
        """Return the first ``count`` of alike GPUs, and the rest; None: there is no rest."""
        if count >= self.count:
            return self, None
        return replace(self, count=count), replace(self, index=self.index + count, count=self.count - count)

    @property
    def available_bytes(self) -> int | None:
        """Free less committed bytes, at least 0; 0 if the device is unusable; None if the free memory is unknown."""
        if self.unusable_reason:
            return 0
        return None if self.free_bytes is None else max(0, self.free_bytes - self.committed_bytes)


def count_devices(devices: Iterable[DeviceCapacity]) -> int:
    """Return the number of devices; those that are alike count each."""
    return sum(device.count for device in devices)


def device_capacities(
    snapshot: Snapshot, committed: Mapping[DeviceIndex, int], only: Iterable[int | str] | None = None
) -> tuple[DeviceCapacity, ...]:
    """Return the memory available on each GPU of a snapshot; in MIG mode, on each of its MIG devices.

    Args:
        snapshot: the machine now.
        committed: committed bytes; those of a whole GPU count for each of its MIG devices, because it is not known
            which of them will be used.
        only: GPUs to consider by index, and MIG devices by UUID; all if left out.
    """
    selected = None if only is None else set(only)
    return tuple(
        replace(device, committed_bytes=_committed_on(device, committed))
        for gpu in snapshot.gpus
        for device in _devices_of(gpu)
        if selected is None or device.index in selected or (device.mig and device.uuid in selected)
    )


_SYSTEM_BYTES = 4 << 30
"""What the system and its page cache are left of a memory that GPU and CPU share. An assumption."""


def described_devices(gpu: Gpu | None, memory_bytes: int, count: int) -> tuple[DeviceCapacity, ...]:
    """Return this number of empty GPUs of a machine that is described rather than read: alike, so one entry."""
    is_whole = gpu is not None and memory_bytes == gpu.total_bytes
    reserved = (gpu.reserved_bytes or 0) if gpu is not None and is_whole else 0
    if gpu is not None and gpu.unified:
        reserved += _SYSTEM_BYTES
    alike = DeviceCapacity(
        index=0,
        uuid=None,
        name=gpu.label if gpu else "as described",
        total_bytes=memory_bytes,
        free_bytes=memory_bytes - reserved,
        reserved_bytes=reserved,
        count=count,
        shares_host_memory=gpu is not None and gpu.unified,
    )
    return (alike,)


def commit(
    devices: Iterable[DeviceCapacity], taken: Iterable[tuple[DeviceCapacity, int]]
) -> tuple[DeviceCapacity, ...]:
    """Return the devices with further bytes committed.

    Args:
        devices: capacities before.
        taken: (device, bytes) of a job that is placed on some of them.
    """
    added: dict[DeviceIndex, int] = {}
    for device, size in taken:
        added[device.device_index] = added.get(device.device_index, 0) + size
    return tuple(
        replace(device, committed_bytes=device.committed_bytes + _committed_on(device, added)) for device in devices
    )


def _committed_on(device: DeviceCapacity, committed: Mapping[DeviceIndex, int]) -> int:
    return sum(committed.get(index, 0) for index in {device.index, device.device_index})


def _devices_of(gpu: GpuReading) -> Iterator[DeviceCapacity]:
    reason = unusable_reason(gpu)
    if gpu.mig:
        yield from _mig_devices_of(gpu, reason)
        return
    yield DeviceCapacity(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        total_bytes=gpu.total_bytes,
        free_bytes=None if gpu.is_stale else gpu.free_bytes,
        unread_reason=gpu.reason("free_bytes") if gpu.is_stale or gpu.free_bytes is None else None,
        reserved_bytes=gpu.reserved_bytes or 0,
        unusable_reason=reason,
        shares_host_memory=gpu.shares_host_memory,
    )


def _mig_devices_of(gpu: GpuReading, unusable_reason: str | None) -> Iterator[DeviceCapacity]:
    devices = gpu.mig or ()
    instances = [device.gpu_instance for device in devices]
    for device in devices:
        yield DeviceCapacity(
            index=gpu.index,
            uuid=device.uuid,
            name=gpu.name,
            total_bytes=device.total_bytes,
            free_bytes=None if gpu.is_stale else device.free_bytes,
            mig=device,
            mig_label=mig_label(gpu.index, device, shares_memory=instances.count(device.gpu_instance) > 1),
            unusable_reason=unusable_reason,
        )


def unusable_reason(gpu: GpuReading) -> str | None:
    """Return why no program can be started on a GPU, regardless of free memory; None: programs can be started."""
    if gpu.mig is not None and not gpu.mig:
        reason = gpu.reason("mig")
        return _NO_MIG_DEVICE if reason is None else f"is in MIG mode, and {reason}"
    for fault in gpu.faults:
        if fault.field is None and fault.code in _UNUSABLE_FAULTS:
            return _UNUSABLE_FAULTS[fault.code]
    if gpu.compute_mode == "prohibited":
        return "does not allow compute programs (compute mode prohibited)"
    in_use = any(kind != "graphics" for process in gpu.processes or () for kind in process.kinds)
    if gpu.compute_mode == "exclusive_process" and in_use and gpu.mig is None:
        return "allows one program at a time (compute mode exclusive-process) and is in use"
    return None


# The verdicts: whether a job fits.


VERDICTS_BEST_FIRST: tuple[Verdict, ...] = ("fits", "tight", "unknown", "does_not_fit")


# Result of a fit check: the verdict for each device and for the whole job.


MAX_LISTED = 1024
"""GPUs, and ranks, that JSON lists one by one; of more it lists the first, and their number (``gpus_total``)."""
MIG_NEEDS_ONE_RANK = "is for jobs with one rank: a program sees one MIG device and no other GPU"
"""CUDA enumerates a single compute instance, and no whole GPU along with one (NVIDIA MIG User Guide, CUDA Device
Enumeration). NCCL 2.31 joins ranks that each see one of their own, as an experiment (NVIDIA/nccl issue 1716)."""


class DeviceVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict for one rank of the job on one device; for as many alike ranks on as many alike devices."""

    device: DeviceCapacity
    verdict: Verdict
    need_bytes: int
    """Expected peak of the rank."""

    @property
    def margin_bytes(self) -> int | None:
        """Available bytes less the expected peak; negative if it does not fit; None if unknown."""
        available = self.device.available_bytes
        return None if available is None else available - self.need_bytes

    @property
    def shortfall_bytes(self) -> int:
        """Bytes by which the expected peak exceeds the available ones; 0 if it fits or they are unknown."""
        return max(0, -(self.margin_bytes or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFit:
    """Memory that a vLLM engine allocates on one device."""

    need: ServingNeed
    asked_bytes: int
    """``gpu_memory_utilization`` x the total memory of the GPU."""
    cache_bytes: int
    cache_tokens: int
    concurrency: float
    """Sequences of full length that run at once."""

    def to_json(self) -> dict[str, Any]:
        """Return the value of ``serving`` in ``vramtop fit --json``."""
        return {
            **asdict(self.need),
            "least_bytes": self.need.least_bytes,
            "wanted_bytes": self.need.wanted_bytes,
            "asked_bytes": self.asked_bytes,
            "cache_bytes": self.cache_bytes,
            "cache_tokens": self.cache_tokens,
            "concurrency": round(self.concurrency, 2),
        }


class FitResult(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict for the whole job, and the devices of its ranks."""

    verdict: Verdict
    gpus: tuple[DeviceVerdict, ...]
    """Every device that was considered, in the order given."""
    rank_devices: tuple[DeviceCapacity, ...]
    """Devices of the ranks, in the order of the ranks; the best placement if the job does not fit. Alike devices may
    be one entry with their number."""
    margin_bytes: int | None
    """Smallest margin over the chosen devices; negative if the job does not fit.

    None if the available memory of one of them is unknown, or there are no devices."""
    sentence: str
    """The verdict in words."""
    host: HostVerdict | None = None
    """Whether the RAM of the host is enough; None: not checked."""
    serving: ServingFit | None = None
    """Memory of the vLLM engine on the chosen device with the worst verdict; None: vLLM does not run the job, or there
    is no such device."""

    @property
    def placement(self) -> tuple[int, ...]:
        """NVML index of each rank's GPU; for a MIG device, of the GPU that it is a part of. At most ``MAX_LISTED``."""
        return tuple(islice((index for device in self.rank_devices for index in device.indices), MAX_LISTED))

    @property
    def cuda_devices(self) -> tuple[str, ...]:
        """Entries of CUDA_VISIBLE_DEVICES for the ranks."""
        return tuple(device.cuda_device for device in self.rank_devices)

    @property
    def bytes_by_device(self) -> tuple[tuple[DeviceCapacity, int], ...]:
        """Bytes that the job would allocate on each chosen device."""
        return tuple((gpu.device, gpu.need_bytes) for gpu in self.gpus if gpu.device in self.rank_devices)

    def to_json(self) -> FitResultJson:
        """Return the fields of ``vramtop fit --json`` that concern the GPUs and the host."""
        listed = (_device_json(gpu, index) for gpu in self.gpus for index in gpu.device.indices)
        found: FitResultJson = {
            "verdict": self.verdict,
            "gpus": list(islice(listed, MAX_LISTED)),
            "placement": list(self.placement),
            "placement_uuids": list(
                islice((each.uuid for each in self.rank_devices for _ in each.indices), MAX_LISTED)
            ),
            "margin_bytes": self.margin_bytes,
        }
        gpus = count_devices(gpu.device for gpu in self.gpus)
        if gpus > MAX_LISTED:
            found["gpus_total"], found["placement_total"] = gpus, count_devices(self.rank_devices)
        if self.host is not None:
            found["host"] = _host_json(self.host)
        if self.serving is not None:
            found["serving"] = self.serving.to_json()
        return found


def smallest_margin(verdicts: Sequence[DeviceVerdict]) -> int | None:
    """Return the smallest margin; None if one of them is unknown, or there are none."""
    margins = [verdict.margin_bytes for verdict in verdicts]
    known = [margin for margin in margins if margin is not None]
    return min(known) if known and len(known) == len(margins) else None


def shortfall_text(size: int) -> str:
    """Return the bytes that lack: ``3.2 GiB``."""
    return f"{format_gib(size)} GiB" if size >= UNSEEN_BYTES else "less than 0.1 GiB"


def combinable_devices(devices: Sequence[DeviceCapacity], ranks: int) -> list[DeviceCapacity]:
    """Return the devices that this many ranks can be placed on together."""
    return [device for device in devices if device.mig is None or ranks == 1]


def too_few_devices(count: int, devices: Sequence[DeviceCapacity]) -> str:
    """Return the reason that a job of several ranks cannot be placed: only ``count`` devices can be combined."""
    there_are = {0: "there are none", 1: "there is 1"}.get(count, f"there are {count}")
    mig_note = f"; a MIG device {MIG_NEEDS_ONE_RANK}" if any(device.mig for device in devices) else ""
    return f"{there_are} here{mig_note}"


def _device_json(gpu: DeviceVerdict, index: int) -> FitGpuJson:
    device = gpu.device
    found: FitGpuJson = {
        "index": index,
        "uuid": device.uuid,
        "name": device.name,
        "free_bytes": device.free_bytes,
        "committed_bytes": device.committed_bytes,
        "available_bytes": device.available_bytes,
        "verdict": gpu.verdict,
        "closed": device.unusable_reason,
        "unread": device.unread_reason,
    }
    if (mig := device.mig) is not None:
        found["mig"] = {
            "profile": mig.profile,
            "gpu_instance": mig.gpu_instance,
            "compute_instance": mig.compute_instance,
            "total_bytes": mig.total_bytes,
        }
    return found


def _host_json(host: HostVerdict) -> HostVerdictJson:
    from vramtop.estimator.formula.rank_memory import ASSUMPTION  # not at start-up: it brings the estimator

    return {
        "verdict": host.verdict,
        "available_bytes": host.available_bytes,
        **host.need.to_json(host.ranks),
        "assumption": ASSUMPTION,
    }


# Fit of a model served by vLLM or SGLang, which take a share of each GPU and do not start unless it is free.


_FLAGS = {
    "vLLM": ("--gpu-memory-utilization", "--max-model-len"),
    "SGLang": ("--mem-fraction-static", "--context-length"),
}
"""Flags of the share and of the longest sequence, by engine."""


def check_serving_fit(
    need: ServingNeed, ranks: RankPeaks, devices: Sequence[DeviceCapacity], *, slack_bytes: int = 0
) -> FitResult:
    """Place the ranks of an engine on the devices with the most available memory.

    Args:
        need: memory that each rank needs.
        ranks: the ranks.
        devices: all devices that are considered.
        slack_bytes: bytes that may lack on each device, or that have to be left if negative.
    """

    def judge(_: RankPeak, device: DeviceCapacity) -> DeviceVerdict:
        return _judge(_serving_on(need, device), device, slack_bytes)

    known_first = sorted(
        combinable_devices(devices, len(ranks)),
        key=lambda device: (device.available_bytes is None, -(device.available_bytes or 0)),
    )
    result, chosen = _fit_result(ranks, devices, list(_in_order(ranks, known_first, judge)), judge)
    found = count_devices(result.rank_devices)
    if found < len(ranks):
        return replace(result, sentence=f"needs {len(ranks):,} GPUs, but {too_few_devices(found, devices)}")
    worst = max(chosen, key=lambda each: VERDICTS_BEST_FIRST.index(each.verdict))
    serving = _serving_on(need, worst.device)
    return replace(result, serving=serving, sentence=_sentence(worst.verdict, serving, worst.device))


def _serving_on(need: ServingNeed, device: DeviceCapacity) -> ServingFit | None:
    """Return the memory of the engine on one device; None if the device's total is unknown.

    CUDA's total leaves out the bytes that the driver reserves.
    """
    if device.total_bytes is None:
        return None
    total = device.total_bytes - device.reserved_bytes
    return ServingFit(
        need=need,
        asked_bytes=need.asked_bytes(total),
        cache_bytes=need.cache_bytes(total),
        cache_tokens=need.cache_tokens(total),
        concurrency=need.concurrency(total),
    )


def _judge(serving: ServingFit | None, device: DeviceCapacity, slack_bytes: int) -> DeviceVerdict:
    verdict: Verdict
    if serving is None or device.available_bytes is None:
        verdict = "unknown"
    elif serving.asked_bytes > device.available_bytes + slack_bytes or serving.need.start_bytes > serving.asked_bytes:
        verdict = "does_not_fit"
    else:
        verdict = "fits" if serving.need.high_bytes <= serving.asked_bytes else "tight"
    return DeviceVerdict(device=device, verdict=verdict, need_bytes=serving.asked_bytes if serving else 0)


def _sentence(verdict: Verdict, serving: ServingFit | None, device: DeviceCapacity) -> str:
    """Return the verdict in words, for the device with the worst one."""
    if serving is None:
        return f"the total memory of {device.label} is unknown"
    need = serving.need
    share = f"{need.engine} takes {need.utilization:g} of each GPU, {format_gib(serving.asked_bytes)} GiB"
    if need.cache is not None:
        share = (
            f"{need.engine} takes {format_gib(need.cache)} GiB of cache, {format_gib(serving.asked_bytes)} GiB in all"
        )
    share_flag, length_flag = _FLAGS[need.engine]
    least = (
        f"{format_gib(need.start_bytes)} GiB for weights, its largest step and one sequence of {need.length:,} tokens"
    )
    if verdict == "unknown":
        return f"{share}, and needs {least}; the memory available on {device.label} is unknown"
    if device.available_bytes is not None and serving.asked_bytes > device.available_bytes:
        have = f"{device.label} has {format_gib(device.available_bytes)}"
        return f"{share} at startup, but {have}: it would refuse to start. It needs {least}"
    if verdict == "does_not_fit":
        raised = need.start_bytes <= serving.asked_bytes / need.utilization
        advice = f"raise {share_flag}" if raised else "spread it over more GPUs"
        return f"{share}, but needs {least}: {advice}, or lower {length_flag}"
    number = f"{serving.concurrency:,.1f}".removesuffix(".0")
    at_once = f"about {number} full-length sequences at once (limit {need.sequences})"
    cache = f"{format_gib(serving.cache_bytes)} GiB of that is cache: {serving.cache_tokens:,} tokens, {at_once}"
    return f"{share}; {cache}" + ("; it may need more at startup" if verdict == "tight" else "")


# Placement of the ranks of a job on devices: each rank allocates its predicted peak on a device of its own.


Judge = Callable[[RankPeak, DeviceCapacity], DeviceVerdict]


def check_training_fit(ranks: RankPeaks, devices: Sequence[DeviceCapacity], *, slack_bytes: int = 0) -> FitResult:
    """Place the rank with the highest peak on the device with the most available memory, and so on.

    If any placement fits all ranks, this one does. A device without a rank is judged by the highest peak.

    Args:
        ranks: predicted peak of each rank.
        devices: all devices that are considered.
        slack_bytes: bytes that may lack on each device, or that have to be left if negative.
    """
    judge = partial(_judge_training_fit, slack_bytes=slack_bytes)
    placed = _place(ranks, combinable_devices(devices, len(ranks)), judge)
    result, chosen = _fit_result(ranks, devices, placed, judge)
    return replace(result, sentence=_sentence_training_fit(result.verdict, ranks, chosen, devices))


def _fit_result(
    ranks: RankPeaks, devices: Sequence[DeviceCapacity], placed: Sequence[_Placed], judge: Judge
) -> tuple[FitResult, list[DeviceVerdict]]:
    """Return the result of a placement, still without a sentence, and the verdicts of the ranks in their order."""
    by_rank = sorted(placed, key=lambda each: each.position)
    chosen = [each.verdict for each in by_rank]
    verdict: Verdict = "does_not_fit"
    if count_devices(each.device for each in chosen) == len(ranks):
        verdict = max((each.verdict for each in chosen), key=VERDICTS_BEST_FIRST.index)
    spare = partial(judge, ranks.highest)
    on_device: dict[int, list[DeviceVerdict]] = {}  # hashing all fields of a device takes longer
    for each in by_rank:
        on_device.setdefault(id(each.of), []).append(each.verdict)
    result = FitResult(
        verdict=verdict,
        gpus=tuple(v for device in devices for v in _verdicts_on(device, on_device.get(id(device), ()), spare)),
        rank_devices=tuple(each.device for each in chosen),
        margin_bytes=smallest_margin(chosen),
        sentence="",
    )
    return result, chosen


class _Placed(msgspec.Struct, frozen=True):
    """Alike ranks on as many alike devices."""

    position: int
    """Their place in the order of all ranks."""
    of: DeviceCapacity
    """The devices of which these are some, or all."""
    verdict: DeviceVerdict


def _verdicts_on(
    device: DeviceCapacity, placed: Sequence[DeviceVerdict], judge: Callable[[DeviceCapacity], DeviceVerdict]
) -> Iterator[DeviceVerdict]:
    """Yield the verdict of a device; of alike devices with different ranks, or with and without, more than one."""
    yield from sorted(placed, key=lambda each: each.device.index)
    taken = count_devices(each.device for each in placed)
    rest = device.split(taken)[1] if taken else device
    if rest is not None:
        yield judge(rest)


def _place(ranks: RankPeaks, devices: Sequence[DeviceCapacity], judge: Judge) -> list[_Placed]:
    """Assign a device to each rank while there are any; one of unknown memory only if the others do not suffice."""
    known = [device for device in devices if device.available_bytes is not None]
    known.sort(key=lambda device: -(device.available_bytes or 0))
    unknown = [device for device in devices if device.available_bytes is None]
    first: list[_Placed] = []
    for count in range(len(unknown) + 1):
        placed = list(_in_order(ranks, [*unknown[:count], *known, *unknown[count:]], judge))
        if all(each.verdict.verdict != "does_not_fit" for each in placed):
            return placed
        first = first or placed
    return first


def _in_order(ranks: RankPeaks, devices: Sequence[DeviceCapacity], judge: Judge) -> Iterator[_Placed]:
    """Yield the ranks with the highest peak on the first devices, and so on."""
    remaining = iter(devices)
    source = free = next(remaining, None)
    for position, (rank, count) in sorted(enumerate(ranks.runs), key=lambda run: -run[1][0].device_bytes):
        wanted = count
        while wanted and source is not None and free is not None:
            taken, free = free.split(min(wanted, free.count))
            yield _Placed(position, source, judge(rank, taken))
            wanted -= taken.count
            if free is None:
                source = free = next(remaining, None)


def _judge_training_fit(rank: RankPeak, device: DeviceCapacity, *, slack_bytes: int) -> DeviceVerdict:
    available = device.available_bytes
    verdict: Verdict
    if available is None or (rank.says_nothing and rank.low_bytes <= available + slack_bytes < rank.high_bytes):
        verdict = "unknown"
    elif rank.device_bytes > available + slack_bytes:
        verdict = "unknown" if rank.low_bytes <= available + slack_bytes else "does_not_fit"
    else:
        verdict = "fits" if rank.high_bytes <= available + slack_bytes else "tight"
    return DeviceVerdict(device=device, verdict=verdict, need_bytes=rank.device_bytes)


def _sentence_training_fit(
    verdict: Verdict, ranks: RankPeaks, chosen: Sequence[DeviceVerdict], devices: Sequence[DeviceCapacity]
) -> str:
    need = _need_text(ranks)
    found = count_devices(each.device for each in chosen)
    if found < len(ranks):
        return f"needs {len(ranks):,} GPUs ({need}), but {too_few_devices(found, devices)}"
    labels = f"GPU {_labels(chosen)}"
    match verdict:
        case "fits":
            return f"needs {need} and fits on {labels}"
        case "tight":
            high = max(rank.high_bytes for rank in ranks.stages)
            return f"needs {need}: expected to fit on {labels}, but may take {format_gib(high)} GiB"
        case "does_not_fit":
            worst = max(chosen, key=lambda each: each.shortfall_bytes)
            if worst.device.unusable_reason:
                return f"needs {need}; {worst.device.label} {worst.device.unusable_reason}"
            lack = "is" if worst.device.count == 1 else "are each"
            return f"needs {need}; {worst.device.label} {lack} {shortfall_text(worst.shortfall_bytes)} short"
        case "unknown":
            span = f"{format_gib(ranks.highest.low_bytes)} to {format_gib(ranks.highest.high_bytes)} GiB"
            if ranks.highest.says_nothing:
                return f"needs {span} on each GPU; the warnings below name the reason"
            short = [each for each in chosen if each.verdict == "unknown" and each.shortfall_bytes]
            if short:
                full = max(short, key=lambda each: each.shortfall_bytes).device
                has = f"{full.label} {'has' if full.count == 1 else 'have each'} {format_gib(full.available_bytes)}"
                return f"needs {need}, in a range of {span}; {has}"
            unread = (each.device.unread_reason for each in chosen if each.verdict == "unknown")
            reason = next(filter(None, unread), None)
            return f"needs {need}; the memory available on {labels} is unknown" + (f": {reason}" if reason else "")


def _labels(chosen: Sequence[DeviceVerdict]) -> str:
    """Return the devices in words: ``0-63``, ``1, 2``, ``0:3 (MIG 1g.10gb)``."""
    devices = sorted((each.device for each in chosen), key=lambda device: device.index)
    return gpu_list(device.label.removeprefix("GPU ") if device.mig else device.indices for device in devices)


def _need_text(ranks: RankPeaks) -> str:
    """Return the memory that the ranks need: ``40.0 GiB``, ``4 × 12.0 GiB``, or the least and the most of a rank."""
    sizes = sorted({rank.device_bytes for rank in ranks.stages})
    if len(sizes) > 1:
        return f"{format_gib(sizes[0])} to {format_gib(sizes[-1])} GiB per GPU (uneven split)"
    need = f"{format_gib(sizes[0])} GiB"
    return f"{len(ranks):,} × {need}" if len(ranks) > 1 else need


# Check whether a job fits: its budget compared with the memory available on the GPUs and on the host.


def check_fit(
    budget: Budget, devices: Sequence[DeviceCapacity], *, slack_bytes: int = 0, ranks: RankPeaks | None = None
) -> FitResult:
    """Place every rank of the budget's job on a device of its own and judge whether it fits there.

    Several ranks are placed on whole GPUs only.

    Args:
        budget: of the job.
        devices: all devices that are considered.
        slack_bytes: bytes that may lack on each device, or that have to be left if negative: for a verdict that should
            not change by so little.
        ranks: those of its ranks that are placed on these devices; None: all.
    """
    ranks = budget.ranks if ranks is None else ranks
    if any(device.growth for device in devices):
        return _check_beside_growth(budget, devices, slack_bytes=slack_bytes, ranks=ranks)
    if budget.host is not None and any(device.shares_host_memory for device in devices):
        return _check_one_pool(budget, budget.host, ranks, devices, slack_bytes=slack_bytes)
    if len(budget.ranks) > 1:
        reasons = ((each, each.unusable_reason or (MIG_NEEDS_ONE_RANK if each.mig else None)) for each in devices)
        devices = [replace(each, unusable_reason=reason) for each, reason in reasons]
    if budget.serving is not None:
        return check_serving_fit(budget.serving, ranks, devices, slack_bytes=slack_bytes)
    found = check_training_fit(ranks, devices, slack_bytes=slack_bytes)
    if budget.rehearsal is not None and budget.rehearsal.growth_bytes and found.verdict == "fits":
        more = size_text(budget.rehearsal.growth_bytes)
        found = replace(found, verdict="tight", sentence=f"{found.sentence}, but needs {more} more after each step")
    length, most = budget.job.training.sequence_length, budget.model.max_positions
    if most is None or length <= most or found.verdict == "does_not_fit":
        return found
    return replace(found, sentence=f"{found.sentence}; but {length:,} tokens exceed the model's {most:,}")


def _check_beside_growth(
    budget: Budget, devices: Sequence[DeviceCapacity], *, slack_bytes: int, ranks: RankPeaks
) -> FitResult:
    """Judge a job where running ones grow: what fits only beside one of them is tight."""
    check = partial(check_fit, budget, slack_bytes=slack_bytes, ranks=ranks)
    reasons = ((each, each.unusable_reason or ("is being filled" if each.growth else None)) for each in devices)
    elsewhere = check([replace(each, growth=None, unusable_reason=reason) for each, reason in reasons])
    if elsewhere.verdict == "fits":
        return elsewhere
    beside = check([replace(each, growth=None) for each in devices])
    taken = {device.index for device in beside.rank_devices}
    growth = "; ".join(dict.fromkeys(each.growth for each in devices if each.growth and each.index in taken))
    if beside.verdict not in ("fits", "tight") or not growth:
        return beside
    return replace(beside, verdict="tight", sentence=f"{beside.sentence} now; {growth}")


def _check_one_pool(
    budget: Budget, host: HostNeed, ranks: RankPeaks, devices: Sequence[DeviceCapacity], *, slack_bytes: int
) -> FitResult:
    """Judge what each process needs on the GPU and beside it against the one memory that both have."""
    loading = budget.phase("loading")
    while_loading = host.loading_bytes(1) + (loading.components.total_bytes if loading else 0)
    beside, most_beside = host.saving_bytes(1), host.high_bytes(1)
    stages = tuple(
        RankPeak(
            device_bytes=max(rank.device_bytes + beside, while_loading),
            low_bytes=max(rank.low_bytes + beside, while_loading),
            high_bytes=max(rank.high_bytes + most_beside, while_loading),
        )
        for rank in ranks.stages
    )
    found = check_training_fit(replace(ranks, stages=stages), devices, slack_bytes=slack_bytes)
    parts = f"{format_gib(ranks.highest.device_bytes)} GiB for the GPU and {format_gib(beside)} GiB for the CPU"
    return replace(found, sentence=f"{found.sentence}; GPU and CPU share memory: {parts}")


def with_host_memory(
    result: FitResult, budget: Budget, host: HostRam, *, ranks: int, slack_bytes: int = 0
) -> FitResult:
    """Return the result with the host's RAM included: a job that exceeds the RAM does not fit.

    Args:
        result: whether the job fits the GPUs; where these share the host's RAM, it has been counted already.
        budget: budget of the job; the result is unchanged if it predicts no host memory.
        host: RAM of the machine.
        ranks: ranks of the job on this machine.
        slack_bytes: bytes that may lack, or that have to be left if negative.
    """
    if budget.host is None or any(gpu.device.shares_host_memory for gpu in result.gpus):
        return result
    verdict = host_verdict(budget.host, host, ranks=ranks, slack_bytes=slack_bytes)
    if verdict.verdict == "does_not_fit" or (verdict.verdict == "tight" and result.verdict == "fits"):
        sentence = f"{result.sentence}; {verdict.sentence}"
        return replace(result, host=verdict, verdict=verdict.verdict, sentence=sentence)
    return replace(result, host=verdict)


# The JSON of a fit check, key by key (``vramtop fit --json``); its schema is made from these types.


class MigJson(TypedDict):
    """A MIG device: a part of a GPU."""

    profile: str | None
    """MIG profile, such as `1g.10gb`."""
    gpu_instance: int
    """GPU instance whose memory it has."""
    compute_instance: int
    """Compute instance of that GPU instance."""
    total_bytes: int | None
    """Its memory."""


class _FitGpu(TypedDict):
    index: int
    """NVML index of the GPU; of a MIG device, of the GPU that it is a part of."""
    uuid: str | None
    """UUID of the GPU or MIG device; null: described, not of this machine, or unknown."""
    name: str | None
    """Name of the card."""
    free_bytes: int | None
    """Free memory as NVML counts it now; of a described GPU, what its driver leaves."""
    committed_bytes: int
    """Free bytes that running jobs will yet allocate, or that are reserved for others."""
    available_bytes: int | None
    """Free less committed bytes: what the job can have."""
    verdict: Verdict
    """Whether a rank fits on this GPU."""
    closed: str | None
    """Why no program can be started on it, whatever is free; null: one can be."""
    unread: str | None
    """Why its memory is unknown; null: it is known."""


class FitGpuJson(_FitGpu, total=False):
    """A GPU or MIG device that was considered."""

    mig: MigJson
    """The MIG device that this is; absent: it is a whole GPU."""


class HostVerdictJson(HostNeedJson):
    """Whether the RAM of the machine is enough."""

    verdict: Literal["fits", "tight", "does_not_fit"]
    """Whether it fits."""
    available_bytes: int
    """RAM that the job can have: free, or in caches that the system drops on demand."""
    assumption: str
    """What the figures take for granted, in one sentence."""


class ServingFitJson(TypedDict):
    """GPU memory that an engine (vLLM, SGLang) allocates on the GPU with the worst verdict."""

    least_bytes: int
    """Bytes with the cache of one sequence of full length, without which it does not start."""
    wanted_bytes: int
    """Bytes with the cache of all sequences at full length."""
    asked_bytes: int
    """Bytes that it takes: its share of the GPU."""
    cache_bytes: int
    """Bytes that remain for the key-value cache."""
    cache_tokens: int
    """Tokens that the cache holds."""
    concurrency: float
    """Sequences of full length that run at once."""


class _Fit(TypedDict):
    verdict: Verdict
    """`fits`; `tight`: the expected peak fits, its upper bound does not; `unknown`: the expected peak does not fit, its
    lower bound does, or figures are missing; `does_not_fit`: not even the lower bound fits."""
    gpus: list[FitGpuJson]
    """Every GPU and MIG device that was considered, at most 1024 of them."""
    placement: list[int]
    """NVML index of each rank's GPU, in the order of the ranks, at most 1024 of them; the best placement if the job
    does not fit, empty if there is none."""
    placement_uuids: list[str | None]
    """UUIDs in the same order: entries of CUDA_VISIBLE_DEVICES; null: the GPU is described, not of this machine."""
    margin_bytes: int | None
    """Smallest margin over the chosen GPUs: available bytes less the expected peak; negative if the job does not fit;
    null: unknown, or there is no GPU."""


class FitResultJson(_Fit, total=False):
    """The verdict for a job, and the GPUs of its ranks."""

    gpus_total: int
    """Number of GPUs; absent: all are listed."""
    placement_total: int
    """Number of ranks; absent: all are listed."""
    host: HostVerdictJson
    """Whether the RAM of the machine is enough; absent: not checked."""
    serving: Annotated[dict[str, Any], FieldsOf(ServingNeed, also=ServingFitJson)]
    """Memory of the engine that serves the model; absent: none does."""
