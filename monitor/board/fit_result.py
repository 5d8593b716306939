"""Result of a fit check: the verdict for each device and for the whole job, and its JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

import msgspec

from vramtop.estimator.common.errors import Verdict
from vramtop.estimator.common.sizes import UNSEEN_BYTES, format_gib
from vramtop.estimator.serving_need import ServingNeed

from ..host.available_ram import HostVerdict
from .capacity import DeviceCapacity, count_devices

VERDICTS_BEST_FIRST: tuple[Verdict, ...] = ("fits", "tight", "unknown", "does_not_fit")
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


class ServingFit(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that a vLLM engine allocates on one device."""

    need: ServingNeed
    asked_bytes: int
    """``gpu_memory_utilization`` x the total memory of the GPU."""
    cache_bytes: int
    cache_tokens: int
    concurrency: float
    """Number of full-length sequences that can run at once."""

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
    def chosen(self) -> list[DeviceVerdict]:
        """The verdicts of the chosen devices."""
        return [gpu for gpu in self.gpus if gpu.device in self.rank_devices]

    @property
    def tightest(self) -> DeviceVerdict | None:
        """The one with the smallest margin; None: there are none."""
        return min(self.chosen, key=lambda gpu: gpu.margin_bytes or 0, default=None)

    @property
    def bytes_by_device(self) -> tuple[tuple[DeviceCapacity, int], ...]:
        """Bytes that the job would allocate on each chosen device."""
        return tuple((gpu.device, gpu.need_bytes) for gpu in self.chosen)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of ``vramtop fit --json`` that concern the GPUs and the host."""
        listed = (_device_json(gpu, index) for gpu in self.gpus for index in gpu.device.indices)
        found: dict[str, Any] = {
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


def _device_json(gpu: DeviceVerdict, index: int) -> dict[str, Any]:
    device = gpu.device
    found: dict[str, Any] = {
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


def _host_json(host: HostVerdict) -> dict[str, Any]:
    from vramtop.estimator.formula.host_memory import ASSUMPTION

    return {
        "verdict": host.verdict,
        "available_bytes": host.available_bytes,
        **host.need.to_json(host.ranks),
        "assumption": ASSUMPTION,
    }
