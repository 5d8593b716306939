"""Placement of a model's modules: tensor-parallel plans, and the devices of a device map."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ..common.untrusted_files import read_file
from ..job.job import Job
from ..job.quantization import BITSANDBYTES
from ..job.resolved_job import ResolvedJob, resolve_job
from ..job.rules.frameworks import PRECISIONS
from ..job.settings import Parallel
from .architecture import Inventory

# Sizes of the modules that a device map places, in the model's order: embedding, blocks, norm, head.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedModule:
    """A module that is placed as a whole: a block, or a module outside of the blocks."""

    name: str
    """Path of the module, of a block with its number: ``model.layers.3``."""
    size: int
    """Bytes of its weights as they are loaded."""
    largest: int
    """Bytes that the largest of its innermost modules has of its own: what accelerate's hooks copy at a time."""
    block: bool
    embedding: bool
    """It holds an embedding."""
    head: bool
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
            block=False,
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
            embedding=False,
            head=False,
            number=number,
        )
        for number in range(inventory.layers)
    ]
    first = [module for module in around if module.embedding]
    return (*first, *blocks, *(module for module in around if not module.embedding))


# Places modules on GPUs, CPU and disk as ``from_pretrained(device_map=...)`` does.
#
# The rules are those of ``get_balanced_memory`` and ``infer_auto_device_map`` (accelerate 1.15, utils/modeling.py;
# transformers 5 has them in integrations/accelerate.py): modules are placed one after the other; the first GPU and
# the CPU leave room for the largest module that is still to be placed; balancing gives each GPU but the last its
# share and 1.25 times a block. bitsandbytes' quantizers leave a tenth of every device free.


UNKNOWN_GPU_BYTES = 80 << 30
_NO_LIMIT = 1 << 60
_UNIT = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)
_ONE_GPU_SHARE = 0.9
"""Share of a single GPU that is filled if the user sets no limit."""
_QUANTIZED_SHARE = 0.9
_BUFFER_FACTOR = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
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
    if inventory.device_map is not None:
        return _without_refused(_by_table(modules, inventory.device_map, count), job)
    limits, host = _limits(job.job.parallel, gpu_bytes or UNKNOWN_GPU_BYTES)
    if rule != "sequential":
        limits = _balanced(modules, limits, low_zero=rule == "balanced_low_0")
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


def placing_request(job: Job, gpu_bytes: int | None) -> dict[str, Any] | None:
    """Return what accelerate needs to place a job's modules.

    None: the job leaves no choice to it, or the built model does not show the sizes of its weights as they are stored.
    """
    rule, kind = job.parallel.device_map, resolve_job(job).quantization
    if not isinstance(rule, str) or (kind is not None and kind not in BITSANDBYTES):
        return None
    gpus, host = _limits(job.parallel, gpu_bytes or UNKNOWN_GPU_BYTES)
    limits = {str(number): round(limit) for number, limit in enumerate(gpus) if limit > 0}
    dtype = PRECISIONS[job.training.precision]
    return {
        "rule": rule,
        "limits": {**limits, "cpu": _NO_LIMIT if host == float("inf") else round(host)},
        "dtype": "fp32" if dtype.mixed else job.training.precision,
        "quantization": kind,
    }


def share_of(modules: Sequence[PlacedModule]) -> tuple[tuple[int, bool, bool], int]:
    """Return a device's number of blocks, whether it holds embedding and head, and the number of its first block."""
    blocks = [module.number for module in modules if module.block]
    kind = len(blocks), any(module.embedding for module in modules), any(module.head for module in modules)
    return kind, min(blocks, default=0)


def parse_size(size: int | str) -> int | None:
    """Return the bytes that ``"20GiB"``, ``"10GB"`` or a number stands for; None: it is no size."""
    if isinstance(size, int):
        return size
    match = _SIZE.fullmatch(size)
    return round(float(match[1]) * _UNIT[match[2].upper()]) if match else None


def _limits(parallel: Parallel, gpu_bytes: int) -> tuple[list[float], float]:
    """Return the limits of the GPUs and of the CPU: those that the job sets, else what is free."""
    written, count = parallel.max_memory, parallel.pipeline
    if written is None:
        alone = count == 1 and parallel.device_map != "sequential"
        return [gpu_bytes * (_ONE_GPU_SHARE if alone else 1.0)] * count, float("inf")
    sizes = {name: parse_size(size) for name, size in written.items()}
    gpus = [float(sizes.get(str(number), 0) or 0) for number in range(count)]  # a GPU that is left out gets nothing
    return gpus, float(sizes["cpu"] or 0) if "cpu" in sizes else 0.0


def _balanced(modules: tuple[PlacedModule, ...], limits: list[float], *, low_zero: bool) -> list[float]:
    used = [at for at, limit in enumerate(limits) if limit > 0]
    if not used:
        return limits
    total, low_zero = sum(module.size for module in modules), low_zero and len(used) > 1
    block = max((module.size for module in modules if module.block), default=0)
    share = total // (len(used) - 1 if low_zero else len(used)) + int(_BUFFER_FACTOR * block)
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


# Styles of tensor-parallel plans: transformers' names, and the classes of torch and Automodel that they stand for.


WHOLE: Final = frozenset(
    {
        *("replicate", "replicated_with_grad_allreduce", "ep_router", "sequence_parallel", "all_reduce", "gather"),
        *("moe_identity_expert", "mla_kv_a_proj", "local", "local_params", "moe_tp_experts"),
    }
)
"""Styles that split no parameter of the module they name; the plan names experts' parameters by themselves."""
STYLES: Final = frozenset(
    {
        *("colwise", "colwise_rep", "colwise_gather_output", "packed_colwise", "embedding_colwise"),
        *("rowwise", "rowwise_rep", "rowwise_split_input", "packed_rowwise", "embedding_rowwise", "grouped_gemm"),
        *WHOLE,
    }
)
"""Every style of transformers' plans (``integrations/tensor_parallel.py``, 4.48 to 5.23)."""
_CLASSES: Mapping[str, str] = {
    "ColwiseParallel": "colwise",
    "RowwiseParallel": "rowwise",
    "SequenceParallel": "sequence_parallel",
    "VocabParallelEmbedding": "embedding_rowwise",
    "SequenceParallelAllGatherActivation": "sequence_parallel",
}
"""Styles for torch's classes, and for those that Automodel derives from them (components/distributed)."""


def style_of_class(name: str, *, whole_input: bool = False, whole_output: bool = False) -> str | None:
    """Return the style that stands for a class of parallel style; None: there is none.

    Args:
        name: of the class, without its module.
        whole_input: its input is whole on every rank (``input_layouts=Replicate()``).
        whole_output: its output is.
    """
    style = _CLASSES.get(name.rpartition(".")[2])
    if style == "colwise" and whole_output:
        return "colwise_rep"
    return "rowwise_rep" if style == "rowwise" and whole_input else style


# Reads a tensor-parallel plan from the Python file that defines it, without running the file.
#
# A plan is a dict of styles by module name, or a function without branches that returns one. Anything else is not
# read.


_MAX_BYTES = 1 << 20
_MAX_DEPTH = 20
"""Names that stand for other names, one after the other."""
_Names = Mapping[str, ast.AST]


class _UnreadableError(Exception):
    """The plan depends on what only the running program knows."""


def read_plan_file(path: str, folder: Path) -> dict[str, str] | None:
    """Return the styles by module of a plan; None: it cannot be read as data.

    Args:
        path: ``module:attribute``, or ``module.attribute``.
        folder: where modules are imported from.
    """
    module, attribute = path.split(":", 1) if ":" in path else path.rpartition(".")[::2]
    place = folder.joinpath(*module.split("."))
    for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
        try:
            tree = ast.parse(read_file(file, _MAX_BYTES))
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        names = _names_in(tree.body)
        try:
            return _plan(names[attribute], names, 0) if attribute in names else None
        except _UnreadableError:
            return None
    return None


def _names_in(body: list[ast.stmt]) -> dict[str, ast.AST]:
    """Return what each name of a file stands for that is assigned or defined once."""
    found: dict[str, ast.AST] = {}
    twice: set[str] = set()
    for name, node in _definitions(body):
        if name in found:
            twice.add(name)
        found[name] = node
    return {name: node for name, node in found.items() if name not in twice}


def _definitions(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        if isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
        elif isinstance(node, ast.FunctionDef):
            yield node.name, node


def _plan(node: ast.AST, names: _Names, depth: int) -> dict[str, str]:
    """Return the plan that an expression or a function gives.

    Raises:
        _UnreadableError: it is no plan that can be read.
    """
    if depth > _MAX_DEPTH:
        raise _UnreadableError
    if isinstance(node, ast.Name) and node.id in names:
        return _plan(names[node.id], names, depth + 1)
    if isinstance(node, ast.FunctionDef):
        return _returned(node, names, depth + 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return {**_plan(node.left, names, depth + 1), **_plan(node.right, names, depth + 1)}
    if not isinstance(node, ast.Dict):
        raise _UnreadableError
    plan: dict[str, str] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:  # ``**other``
            plan |= _plan(value, names, depth + 1)
        else:
            plan[_text(key)] = _style(value, names, depth + 1)
    return plan


def _returned(function: ast.FunctionDef, names: _Names, depth: int) -> dict[str, str]:
    """Return the plan of a function that assigns, updates and returns without a branch."""
    local: dict[str, ast.AST] = dict(names)
    plans: dict[str, dict[str, str]] = {}
    for node in function.body:
        if isinstance(node, ast.Return) and node.value is not None:
            known = isinstance(node.value, ast.Name) and node.value.id in plans
            return plans[node.value.id] if known else _plan(node.value, local, depth)  # type: ignore[attr-defined]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # its docstring
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if not _assigns(node, local, plans, depth):
            raise _UnreadableError
    raise _UnreadableError


def _assigns(node: ast.stmt, local: dict[str, ast.AST], plans: dict[str, dict[str, str]], depth: int) -> bool:
    """Follow a statement that assigns a name, an item of a plan, or updates a plan; False: it does something else."""
    for name, value in _definitions([node]):
        local[name] = value
        if isinstance(value, ast.Dict):
            plans[name] = _plan(value, local, depth)
        return True
    if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Subscript):
        changed = _known(target.value, plans)
        if changed is not None:
            changed[_text(target.slice)] = _style(node.value, local, depth)
        return changed is not None
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(method := call.func, ast.Attribute) and method.attr == "update":
        changed = _known(method.value, plans)
        if changed is not None and len(call.args) == 1 and not call.keywords:
            changed |= _plan(call.args[0], local, depth)
            return True
    return False


def _known(node: ast.AST, plans: dict[str, dict[str, str]]) -> dict[str, str] | None:
    return plans.get(node.id) if isinstance(node, ast.Name) else None


def _style(node: ast.AST, names: _Names, depth: int) -> str:
    if depth > _MAX_DEPTH:
        raise _UnreadableError
    if isinstance(node, ast.Name) and node.id in names:
        return _style(names[node.id], names, depth + 1)
    style: str | None = None
    if isinstance(node, ast.Constant) and node.value in STYLES:
        style = str(node.value)
    elif isinstance(node, ast.Call):
        layouts = {word.arg: _last_name(word.value) for word in node.keywords}
        style = style_of_class(
            _last_name(node.func),
            whole_input=layouts.get("input_layouts") == "Replicate",
            whole_output=layouts.get("output_layouts") == "Replicate",
        )
    if style is None:
        raise _UnreadableError
    return style


def _last_name(node: ast.AST) -> str:
    """Return the last name of ``a.b.Class``, ``Class`` or a call of it; empty if it is something else."""
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise _UnreadableError


# Tensor-parallel plans as data: a style for each pattern of module names, and the parameters that it splits.


Plan = tuple[tuple[str, str], ...]
"""Patterns of module or parameter names, ``*`` for a layer's number, each with a style of transformers' plans."""


def plan_of_job(job: Job) -> Plan | None:
    """Return the job's own tensor-parallel plan; None: it has none, or one that cannot be read as data."""
    plan = job.parallel.tensor_plan
    if plan is None or job.parallel.tensor == 1:
        return None
    return _plan_in_file(plan, job.model.code_folder or "") if isinstance(plan, str) else tuple(plan.items())


def has_unread_plan(job: Job) -> bool:
    """Return True if the job names a plan that only running its code would tell."""
    return job.parallel.tensor > 1 and job.parallel.tensor_plan is not None and plan_of_job(job) is None


@lru_cache(maxsize=64)
def _plan_in_file(path: str, folder: str) -> Plan | None:
    found = read_plan_file(path, Path(folder))
    return None if found is None else tuple(found.items())


@lru_cache(maxsize=4096)
def splits(plan: Plan, parameter: str) -> bool:
    """Return True if a plan splits a parameter; rowwise styles leave a bias whole.

    Args:
        plan: the plan.
        parameter: its name, ``*`` for a layer's number.
    """
    module, _, leaf = parameter.rpartition(".")
    for pattern, style in plan:
        if style not in WHOLE and _matches(pattern, parameter):
            return True
        if style not in WHOLE and _matches(pattern, module):
            return not (leaf == "bias" and style.startswith("rowwise"))
    return False


@lru_cache(maxsize=4096)
def _matches(pattern: str, name: str) -> bool:
    """Return True if a pattern names a module: part by part, as torch's ``parallelize_module`` compares them."""
    wanted, given = pattern.split("."), name.split(".")
    return len(wanted) == len(given) and all(
        each.isdigit() or each == "*" if part == "*" else fnmatchcase(part, each)
        for each, part in zip(wanted, given, strict=True)
    )
