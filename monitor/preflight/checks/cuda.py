"""Checks of CUDA: the driver, a torch that it can run and that has kernels for the GPUs, and a GPU for each rank.

Sources: NVIDIA's CUDA Compatibility guide (minor version compatibility, since CUDA 11), the CUDA C++ Programming Guide
on binary and PTX compatibility (suffix a: one GPU type only; f: one family).
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from ...host.plain_text import gpu_list
from ..check import (
    PYTHON_ELSEWHERE,
    CheckContext,
    CheckResult,
    assign_gpus,
    assigned_gpu_indices,
    fails,
    inconclusive,
    passes,
    skips,
    target_devices,
    warns,
)

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_MIN_MINOR_COMPATIBLE_MAJOR = 11
"""From this CUDA on, a driver runs programs of all minor versions of its major version."""


def check_driver(context: CheckContext) -> CheckResult:
    """The NVIDIA driver, and the GPUs that it lists.

    Fail without a driver or GPUs; warn of GPUs that do not answer.
    """
    machine = context.machine
    if machine.is_described:
        return skips("the job is for another machine than this one")
    if machine.snapshot is None:
        advice = "start the job where a driver answers; --gpu-type NAME asks about another machine"
        return fails(machine.unavailable_reason or "no GPU can be seen here", advice)
    gpus, source = machine.snapshot.gpus, machine.snapshot.source
    if not gpus:
        return fails("the NVIDIA driver lists no GPU", "look for the GPU with lspci and dmesg")
    names = Counter(gpu.name or "unknown GPU" for gpu in gpus)
    types = ", ".join(f"{count} x {name}" for name, count in names.items())
    found = f"driver {source.driver_version or '(unknown)'}, CUDA up to {source.cuda_version or '?'}; {types}"
    silent = [gpu.index for gpu in gpus if gpu.total_bytes is None and any(f.field is None for f in gpu.faults)]
    if silent:
        return warns(f"{found}; no answer from GPU {gpu_list(silent)}", "reset or leave out those GPUs")
    return passes(found)


def check_cuda_runtime(context: CheckContext) -> CheckResult:
    """The CUDA version that the job's torch was built with, compared with the one that the driver supports.

    Fail for a torch without CUDA, or with a CUDA that is too new for the driver.
    """
    if context.python_is_elsewhere:
        return skips(PYTHON_ELSEWHERE)
    build, python = context.torch_build(), context.interpreter
    if build.version is None:
        if not python.is_certain:
            found = f"{python.path} ({python.origin}) has no torch"
            return inconclusive(found, "name the job's with --python")
        return fails(f"torch cannot be imported by {python.path}: {build.problem}", "install torch there")
    if build.hip is not None:
        return fails(f"torch {build.version} is built for ROCm {build.hip}", "install torch for CUDA")
    if build.cuda is None:
        found = f"torch {build.version} in {python.path} is built without CUDA"
        if not python.is_certain:
            return inconclusive(f"{found} ({python.origin})", "name the job's Python with --python")
        return fails(found, "install torch for CUDA (pytorch.org, Get Started)")
    driver = context.machine.snapshot.source.cuda_version if context.machine.snapshot else None
    built = f"torch {build.version} is built with CUDA {build.cuda}"
    if driver is None:
        return passes(f"{built}; the driver that will run the job is not known")
    return _compare_cuda(built, build.cuda, driver)


def _compare_cuda(built: str, cuda: str, driver: str) -> CheckResult:
    needed, known = _major_minor(cuda), _major_minor(driver)
    if needed <= known:
        return passes(f"{built}, the driver runs up to {driver}")
    if needed[0] == known[0] >= _MIN_MINOR_COMPATIBLE_MAJOR:
        return passes(f"{built}, the driver is of {driver}: the same major version, but for kernels in PTX")
    advice = f"update the driver, or install torch for CUDA {known[0]}.{known[1]} or older"
    return fails(f"{built}, and the driver runs only up to {driver}", advice)


def check_compute_capability(context: CheckContext) -> CheckResult:
    """The compute capability of the GPUs, compared with the architectures that the job's torch has kernels for.

    Fail if torch has no kernels for a GPU; warn if they are compiled from PTX.
    """
    if context.python_is_elsewhere:
        return skips(PYTHON_ELSEWHERE)
    devices = target_devices(context)
    if not devices:
        return skips("there is no GPU to check")
    described = context.machine.gpu_type if context.machine.is_described else None
    cards = {device.index: described or device.gpu_type for device in devices}
    capabilities = {index: card.compute_capability for index, card in cards.items() if card is not None}
    if not capabilities and context.machine.is_described:
        return skips("only the size of that GPU is known")
    if not capabilities:
        return inconclusive("the compute capability of the GPUs is not known")
    build = context.torch_build()
    if build.architectures is None:
        return skips("torch does not list its architectures: see the CUDA runtime check")
    support = {index: kernel_support(each, build.architectures) for index, each in capabilities.items()}
    built = f"torch {build.version} has kernels for {' '.join(build.architectures)}"
    unsupported = [index for index, kind in support.items() if kind is None]
    if unsupported:
        gpus = ", ".join(f"GPU {index} ({_dotted(capabilities[index])})" for index in unsupported[:4])
        return fails(f"{built}, but none for {gpus}", "install a torch that is built for these GPUs")
    shown = ", ".join(sorted({_dotted(each) for each in capabilities.values()}))
    if "ptx" in support.values():
        return warns(f"{built}; for {shown} they are compiled from PTX when the job first starts")
    return passes(f"{built}; the GPUs have {shown}")


def check_visible_devices(context: CheckContext) -> CheckResult:
    """A GPU for each rank on this machine, given CUDA_VISIBLE_DEVICES.

    Fail if there are fewer visible GPUs than ranks; warn of GPUs other than the chosen ones.
    """
    snapshot, assignments = context.machine.snapshot, assign_gpus(context)
    if snapshot is None:
        return skips("there are no GPUs of this machine to check")
    value, indices = context.environ.get("CUDA_VISIBLE_DEVICES"), assigned_gpu_indices(context)
    setting = "CUDA_VISIBLE_DEVICES is not set" if value is None else f"CUDA_VISIBLE_DEVICES={value}"
    if context.devices.is_unknown:
        return inconclusive(" ".join(context.devices.notes).rstrip("."))
    setting = context.devices.by_flag or setting
    names_mig = (value or "").startswith("MIG-")  # several MIG devices may be parts of one GPU
    name = context.devices.by_flag or "CUDA_VISIBLE_DEVICES"  # what chooses the GPUs, in advice
    if not indices and not names_mig:
        return fails(f"{setting}: no GPU is visible", f"correct {name}, or leave it out")
    gpus, ranks, total = f"GPU {gpu_list(indices)}", context.ranks_here, len(snapshot.gpus)
    if len(indices) < ranks and not names_mig:
        advice = "start fewer ranks on this machine"
        if ranks <= total:
            advice = f"name as many GPUs in {name} as there are ranks"
        elif context.local_ranks is None:
            advice = "start fewer ranks; if some run on other machines, give the whole launch line"
        return fails(f"{setting}: {ranks} ranks, but only {gpus} for them", advice)
    found = f"{setting}: {ranks} {'rank' if ranks == 1 else 'ranks'} on {gpus} of {total}"
    chosen = list(dict.fromkeys(device.index for device in context.machine.devices))
    if context.machine.chosen and not set(indices) <= set(chosen):
        named = ",".join(map(str, chosen))
        return warns(f"{found}, and not on GPU {named}, as --gpu says", f"set {name}={named}")
    note = next((assignment.note for assignment in assignments if assignment.note), None)
    return warns(f"{found}; {note}", "set CUDA_DEVICE_ORDER=PCI_BUS_ID") if note else passes(found)


def kernel_support(capability: tuple[int, int], architectures: Sequence[str]) -> Literal["binary", "ptx"] | None:
    """Return how a GPU of this compute capability runs kernels compiled for these architectures; None: it cannot."""
    best: Literal["binary", "ptx"] | None = None
    for architecture in architectures:
        match = _ARCHITECTURE.fullmatch(architecture)
        if match is None:
            continue
        target = int(match[2]), int(match[3])
        same_major = target[0] == capability[0] and target[1] <= capability[1]
        if match[4] == "a":
            runs = target == capability
        else:
            runs = same_major or (match[1] == "compute" and not match[4] and target <= capability)
        if runs and match[1] == "sm":
            return "binary"
        if runs:
            best = "ptx"
    return best


def _major_minor(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    digits = re.match(r"\d*", minor)
    return int(major), int(digits[0] or 0) if digits else 0


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
