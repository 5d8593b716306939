"""Placement of a model's modules on the devices of a device map."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from ..common.sizes import parse_size
from ..job.resolved_job import ResolvedJob
from ..job.rules.dtype_widths import BITSANDBYTES
from ..job.settings import Parallel
from .inventory import Inventory


class PlacedModule(msgspec.Struct, frozen=True, kw_only=True):
    """A module that is placed as a whole: a block, or a module outside of the blocks."""

    name: str
    """Path of the module, of a block with its number: ``model.layers.3``."""
    size: int
    """Bytes of its weights as they are loaded."""
    largest: int
    """Bytes that the largest of its innermost modules has of its own: what accelerate's hooks copy at a time."""
    block: bool = False
    embedding: bool = False
    """It holds an embedding."""
    head: bool = False
    """It computes the outputs; a tied head is where its embedding is. The final norm is neither."""
    number: int = 0
    """Number of a block, from 0."""


@lru_cache(maxsize=256)
def placed_modules(inventory: Inventory, sizes: tuple[int, ...]) -> tuple[PlacedModule, ...]:
    """Return the modules of a model in their order; blocks are taken to be alike.

    Args:
        inventory: the model's parameters.
        sizes: bytes of each of its groups as they are stored.
    """
    groups = tuple(zip(inventory.groups, sizes, strict=True))
    layered = [(group, size) for group, size in groups if group.layered]
    block = sum(size for _, size in layered) / max(1, inventory.layers)
    inner: dict[str, float] = {}
    for group, size in layered:  # experts in two tensors are one module
        module = group.name.rpartition(".")[0]
        inner[module] = inner.get(module, 0.0) + size / group.repeat
    largest = max(inner.values(), default=0.0)
    prefix = layered[0][0].name.partition(".*")[0] if layered else "layers"
    around = [
        PlacedModule(
            name=group.name.rpartition(".")[0] or group.name,
            size=size,
            largest=size,
            embedding=group.role == "embedding",
            head=group.role == "head" or (inventory.tied_head and group.role == "embedding"),
        )
        for group, size in groups
        if not group.layered
    ]
    blocks = [
        PlacedModule(
            name=f"{prefix}.{number}",
            size=round(block),
            largest=round(largest),
            block=True,
            number=number,
        )
        for number in range(inventory.layers)
    ]
    first = [module for module in around if module.embedding]
    return (*first, *blocks, *(module for module in around if not module.embedding))


UNKNOWN_GPU_BYTES = 80 << 30
_ONE_GPU_SHARE = 0.9
"""Share of a single GPU that is filled if the user sets no limit."""
_QUANTIZED_SHARE = 0.9
_BUFFER_FACTOR = 1.25


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """The modules on each device."""

    gpus: tuple[tuple[PlacedModule, ...], ...]
    host: tuple[PlacedModule, ...]
    """In CPU RAM: accelerate's hooks copy one layer at a time to the first GPU, which runs it."""
    disk: tuple[PlacedModule, ...]
    refused: tuple[PlacedModule, ...] = ()
    """Modules without room on any GPU that cannot be offloaded: the job trains, or bitsandbytes quantizes them."""

    @property
    def offloaded(self) -> tuple[PlacedModule, ...]:
        """Modules that no GPU holds."""
        return (*self.host, *self.disk)


def place(
    job: ResolvedJob, inventory: Inventory, sizes: tuple[int, ...], *, gpu_bytes: int | None = None
) -> Placement | None:
    """Return where the modules of a job with a device map are; None: it has none.

    The rules are those of ``get_balanced_memory`` and ``infer_auto_device_map`` (accelerate 1.15, utils/modeling.py;
    transformers 5 has its own in integrations/accelerate.py): modules are placed one after the other; the first GPU and
    the CPU leave room for the largest module that is still to be placed; balancing gives each GPU but the last its
    share and 1.25 times a block, in transformers 5 of the largest innermost module where that is larger.
    bitsandbytes' quantizers leave a tenth of every device free.

    Args:
        job: the job.
        inventory: its model.
        sizes: bytes of each of its parameter groups as they are stored.
        gpu_bytes: memory of a GPU that is free for the process; None: not known, so 80 GiB.
    """
    rule = job.job.parallel.device_map
    if rule is None:
        return None
    modules = placed_modules(inventory, sizes)
    count = job.job.parallel.pipeline
    if isinstance(rule, dict):
        return _without_refused(_by_table(modules, rule, count), job)
    limits, host = _limits(job.job.parallel, gpu_bytes or UNKNOWN_GPU_BYTES)
    if rule != "sequential":
        leaf = 0 if job.versions.older("transformers", 5) else max((module.largest for module in modules), default=0)
        limits = _balanced(modules, limits, low_zero=rule == "balanced_low_0", leaf=leaf)
    if job.quantization in BITSANDBYTES:
        limits = [_QUANTIZED_SHARE * limit for limit in limits]
    return _without_refused(_one_after_another(modules, limits, host, tied=inventory.tied_head), job)


def _without_refused(placement: Placement, job: ResolvedJob) -> Placement:
    """Return the placement with everything on GPUs, where nothing may be offloaded: the last GPU has what is left.

    Source: ``validate_environment`` of transformers' quantizers/quantizer_bnb_4bit.py and quantizer_bnb_8bit.py.
    """
    if not placement.offloaded or not (job.trains or job.quantization in BITSANDBYTES):
        return placement
    *others, last = placement.gpus
    return Placement(gpus=(*others, (*last, *placement.offloaded)), host=(), disk=(), refused=placement.offloaded)


def share_of(modules: Sequence[PlacedModule]) -> tuple[tuple[int, bool, bool], int]:
    """Return a device's number of blocks, whether it holds embedding and head, and the number of its first block."""
    blocks = [module.number for module in modules if module.block]
    kind = len(blocks), any(module.embedding for module in modules), any(module.head for module in modules)
    return kind, min(blocks, default=0)


def _limits(parallel: Parallel, gpu_bytes: int) -> tuple[list[float], float]:
    """Return the limits of the GPUs and of the CPU: those that the job sets, else what is free."""
    written, count = parallel.max_memory, parallel.pipeline
    if written is None:
        alone = count == 1 and parallel.device_map != "sequential"
        return [gpu_bytes * (_ONE_GPU_SHARE if alone else 1.0)] * count, float("inf")
    sizes = {name: float(size if isinstance(size, int) else parse_size(size)) for name, size in written.items()}
    return [sizes.get(str(number), 0.0) for number in range(count)], sizes.get("cpu", 0.0)  # left out: nothing


def _balanced(modules: tuple[PlacedModule, ...], limits: list[float], *, low_zero: bool, leaf: int) -> list[float]:
    used = [at for at, limit in enumerate(limits) if limit > 0]
    if not used:
        return limits
    total, low_zero = sum(module.size for module in modules), low_zero and len(used) > 1
    block = max((module.size for module in modules if module.block), default=0)
    share = total // (len(used) - 1 if low_zero else len(used)) + int(_BUFFER_FACTOR * max(block, leaf))
    balanced = list(limits)
    for at in used[:-1]:
        balanced[at] = min(limits[0] if low_zero and at == 0 else share, limits[at])
    if low_zero:
        balanced[0] = min(max(0, total - sum(balanced[1:])), balanced[0])
    return balanced


def _one_after_another(modules: tuple[PlacedModule, ...], limits: list[float], host: float, *, tied: bool) -> Placement:
    devices: list[list[PlacedModule]] = [[] for _ in (*limits, host, None)]
    room, at, cpu = [*limits, host, float("inf")], 0, len(limits)
    largest_after = [0] * (len(modules) + 1)
    for number in reversed(range(len(modules))):
        largest_after[number] = max(largest_after[number + 1], modules[number].size)
    if tied:  # the head is a module of its own, of the embedding's size, until the embedding is placed
        largest_after[0] = max(largest_after)
    for number, module in enumerate(modules):
        while at < len(room) - 1:
            reserved = largest_after[number + 1] if at in (0, cpu) else 0
            if sum(each.size for each in devices[at]) + module.size <= room[at] - reserved:
                break
            at += 1
        devices[at].append(module)
    gpus = tuple(tuple(held) for held in devices[:cpu])
    return Placement(gpus=gpus, host=tuple(devices[cpu]), disk=tuple(devices[cpu + 1]))


def _by_table(modules: tuple[PlacedModule, ...], table: Mapping[str, int | str], count: int) -> Placement:
    """Place each module on the device of the longest name in the table that it begins with."""
    gpus: list[list[PlacedModule]] = [[] for _ in range(count)]
    host: list[PlacedModule] = []
    disk: list[PlacedModule] = []
    for module in modules:
        names = [name for name in table if not name or f"{module.name}.".startswith(f"{name}.")]
        inner = [name for name in table if name.startswith(f"{module.name}.")]  # a block that is split
        chosen = max(names, key=len) if names else inner[0] if inner else None
        device = 0 if chosen is None else table[chosen]
        number = _gpu_number(device)
        if number is None:
            (disk if device == "disk" else host).append(module)
        else:
            gpus[min(number, count - 1)].append(module)
    return Placement(gpus=tuple(map(tuple, gpus)), host=tuple(host), disk=tuple(disk))


def _gpu_number(device: int | str) -> int | None:
    """Return the number of a GPU (``1``, ``"cuda:1"``, ``"1"``); None: it is the CPU or the disk."""
    if isinstance(device, int):
        return device
    name, _, number = device.rpartition(":")
    if device in ("cpu", "disk", "meta"):
        return None
    return int(number) if number.isdigit() and name in ("", "cuda") else 0
