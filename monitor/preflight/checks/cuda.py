"""Is CUDA there: the driver, a torch that it can run, cards that torch has kernels for, and as many as there are ranks.

Sources: NVIDIA's CUDA Compatibility guide (minor version compatibility, since CUDA 11), the CUDA C++ Programming Guide
on binary and PTX compatibility (a and f suffixes are of one card and of one family).
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from ..context.check import Check, CheckResult
from ..context.check_context import CheckContext
from ..context.target_gpus import assign_gpus, assigned_gpu_indices, target_devices

_TARGET = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_MINOR_COMPATIBLE = 11
"""From this CUDA on, a driver runs programs of all minor versions of its major one."""


class DriverCheck(Check):
    """The NVIDIA driver, and the GPUs it lists."""

    name = "NVIDIA driver"
    waits_for = "the driver"
    decisive = True

    def run(self, context: CheckContext) -> CheckResult:
        """Without one, nothing runs here."""
        machine = context.machine
        if machine.is_described:
            return self.skips("the job is for another machine than this one")
        if machine.snapshot is None:
            advice = "start the job where a driver answers; --gpu-type NAME asks about another machine"
            return self.fails(machine.unavailable_reason or "no GPU can be seen here", advice)
        gpus, source = machine.snapshot.gpus, machine.snapshot.source
        if not gpus:
            return self.fails("the NVIDIA driver lists no GPU", "look for the card with lspci and dmesg")
        names = Counter(gpu.name or "unknown card" for gpu in gpus)
        cards = ", ".join(f"{count} x {name}" for name, count in names.items())
        found = f"driver {source.driver_version or '(unknown)'}, CUDA up to {source.cuda_version or '?'}; {cards}"
        silent = [gpu.index for gpu in gpus if gpu.total_bytes is None and any(f.field is None for f in gpu.faults)]
        if silent:
            which = ", ".join(map(str, silent))
            return self.warns(f"{found}; no answer from GPU {which}", "reset or leave out those GPUs")
        return self.passes(found)


class CudaRuntimeCheck(Check):
    """The CUDA that the job's torch was built with, against what the driver runs."""

    name = "CUDA runtime"
    waits_for = "the job's Python to import torch"
    timeout_seconds = 90

    def run(self, context: CheckContext) -> CheckResult:
        """A torch without CUDA, or with one that is too new for the driver, is a failure."""
        build, python = context.torch_build(), context.interpreter
        if build.version is None:
            if not python.is_certain:
                return self.inconclusive(
                    f"{python.path} ({python.origin}) has no torch", "name the job's with --python"
                )
            return self.fails(f"torch cannot be imported by {python.path}: {build.problem}", "install torch there")
        if build.hip is not None:
            return self.fails(f"torch {build.version} is built for ROCm {build.hip}", "install torch for CUDA")
        if build.cuda is None:
            found = f"torch {build.version} in {python.path} is built without CUDA"
            if not python.is_certain:
                return self.inconclusive(f"{found} ({python.origin})", "name the job's Python with --python")
            return self.fails(found, "install torch for CUDA (pytorch.org, Get Started)")
        newest = context.machine.snapshot.source.cuda_version if context.machine.snapshot else None
        built = f"torch {build.version} is built with CUDA {build.cuda}"
        if newest is None:
            return self.passes(f"{built}; the driver that will run it is not known")
        return self._against(built, build.cuda, newest)

    def _against(self, built: str, cuda: str, newest: str) -> CheckResult:
        major, minor = _numbers(cuda)
        driver_major, driver_minor = _numbers(newest)
        if (major, minor) <= (driver_major, driver_minor):
            return self.passes(f"{built}, the driver runs up to {newest}")
        if major == driver_major and major >= _MINOR_COMPATIBLE:
            return self.passes(f"{built}, the driver is of {newest}: the same major version, but for kernels in PTX")
        advice = f"update the driver, or install torch for CUDA {driver_major}.{driver_minor} or older"
        return self.fails(f"{built}, and the driver runs only up to {newest}", advice)


class ComputeCapabilityCheck(Check):
    """The cards' compute capability, against what the job's torch has kernels for."""

    name = "Compute capability"
    waits_for = "the driver, and the job's Python to import torch"
    timeout_seconds = 90

    def run(self, context: CheckContext) -> CheckResult:
        """A card that no kernel fits is a failure."""
        rooms = target_devices(context)
        if not rooms:
            return self.skips("there is no GPU to look at")
        known = context.machine.capabilities()
        cards = {room.index: known[room.index] for room in rooms if room.index in known}
        if not cards and context.machine.is_described:
            return self.skips("a card of that size, of which no more is known")
        if not cards:
            return self.inconclusive("the compute capability of the cards is not known")
        build = context.torch_build()
        if build.architectures is None:
            return self.skips("torch names no architectures that it is built for: see the CUDA runtime")
        how = {index: kernel_support(card, build.architectures) for index, card in cards.items()}
        built = f"torch {build.version} has kernels for {' '.join(build.architectures)}"
        without = [index for index, way in how.items() if way is None]
        shown = ", ".join(sorted({_dotted(card) for card in cards.values()}))
        if without:
            which = ", ".join(f"GPU {index} ({_dotted(cards[index])})" for index in without[:4])
            return self.fails(f"{built}, none of them for {which}", "install a torch that is built for these cards")
        if "ptx" in how.values():
            return self.warns(f"{built}; for {shown} they are compiled from PTX when the job first starts")
        return self.passes(f"{built}; the cards have {shown}")


class VisibleDevicesCheck(Check):
    """A GPU of its own for each rank on this machine, after CUDA_VISIBLE_DEVICES."""

    name = "Visible devices"
    waits_for = "the driver"

    def run(self, context: CheckContext) -> CheckResult:
        """Too few is a failure."""
        snapshot, seats = context.machine.snapshot, assign_gpus(context)
        if snapshot is None:
            return self.skips("no GPUs of this machine to look at")
        said, taken = context.environ.get("CUDA_VISIBLE_DEVICES"), assigned_gpu_indices(context)
        words = "CUDA_VISIBLE_DEVICES is not set" if said is None else f"CUDA_VISIBLE_DEVICES={said}"
        slices = (said or "").startswith("MIG-")  # several of them may be of one GPU
        if not taken and not slices:
            return self.fails(f"{words}: no GPU is visible", "correct CUDA_VISIBLE_DEVICES, or unset it")
        where = f"GPU {', '.join(map(str, taken))}"
        if len(taken) < len(seats) and not slices:
            return self._too_few(context, f"{words}: {len(seats)} ranks, and only {where} for them", len(snapshot.gpus))
        found = f"{words}: {len(seats)} {'rank' if len(seats) == 1 else 'ranks'} on {where} of {len(snapshot.gpus)}"
        wanted = list(dict.fromkeys(room.index for room in context.machine.devices))
        if context.machine.chosen and not set(taken) <= set(wanted):
            named = ",".join(map(str, wanted))
            return self.warns(f"{found}, and not on GPU {named}, as --gpu says", f"set CUDA_VISIBLE_DEVICES={named}")
        doubt = next((seat.note for seat in seats if seat.note), None)
        return self.warns(f"{found}; {doubt}", "set CUDA_DEVICE_ORDER=PCI_BUS_ID") if doubt else self.passes(found)

    def _too_few(self, context: CheckContext, found: str, here: int) -> CheckResult:
        ranks = context.local_ranks or context.job.parallel.world_size
        if ranks <= here:
            return self.fails(found, "name as many GPUs in CUDA_VISIBLE_DEVICES as there are ranks")
        if context.local_ranks is None:
            return self.fails(found, "start fewer ranks; if others run on other machines, give the whole launch line")
        return self.fails(found, "start fewer ranks on this machine")


def kernel_support(card: tuple[int, int], architectures: Sequence[str]) -> Literal["binary", "ptx"] | None:
    """How a card of this compute capability runs what was compiled for these; None: not at all."""
    best: Literal["binary", "ptx"] | None = None
    for architecture in architectures:
        match = _TARGET.fullmatch(architecture)
        if match is None:
            continue
        target = int(match[2]), int(match[3])
        same_major = target[0] == card[0] and target[1] <= card[1]
        if match[4] == "a":
            runs = target == card
        else:
            runs = same_major or (match[1] == "compute" and not match[4] and target <= card)
        if runs and match[1] == "sm":
            return "binary"
        if runs:
            best = "ptx"
    return best


def _numbers(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    digits = re.match(r"\d*", minor)
    return int(major), int(digits[0] or 0) if digits else 0


def _dotted(card: tuple[int, int]) -> str:
    return f"{card[0]}.{card[1]}"
