"""Facts for the preflight checks: interpreter, packages, model files, disk space, hub access, launch and machine."""

import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

import msgspec

from vramtop.estimator.common import limits
from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.limits import LimitError, decode_json
from vramtop.estimator.common.paths import expand_user, is_file, is_folder
from vramtop.estimator.common.process_limit import ProcessLimitError
from vramtop.estimator.common.trust import find_program
from vramtop.estimator.common.untrusted_files import TooLargeError, open_file, read_file
from vramtop.estimator.job.gpu_catalogue import Gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.load_and_save import names_user_code
from vramtop.estimator.job.rules.frameworks import FRAMEWORKS
from vramtop.estimator.job.rules.optimizers.table import OPTIMIZERS
from vramtop.estimator.job.rules.strategies import STRATEGIES
from vramtop.estimator.model.find_config import cached_model, find_built_in
from vramtop.estimator.model.hub import Refusal, ask_hub, hub_host
from vramtop.estimator.readers.program.program import Launch, read_world_size, yaml_layer
from vramtop.estimator.readers.source.data_files import read_table
from vramtop.estimator.readers.source.settings import LayeredSettings, SettingsLayer, as_int
from vramtop.estimator.readers.tools.tool_registry import find_program_index, parse_launch, split_launch_line
from vramtop.estimator.trace.interpreters import find_interpreters

from ..board.capacity import DeviceCapacity, device_capacities
from ..host.available_ram import HostRam, available_host_memory
from ..snapshot.snapshot import Snapshot
from ..sources.nvml.nvml_source import NvmlSource, shut_down
from ..storage.reservations import Reservations

# The machine that a job is to run on: this one as it is now, or one that the user describes.


DRIVER_TIMEOUT_SECONDS = 20.0
"""Without persistence mode the driver first initialises every GPU."""
Capabilities = Mapping[int, tuple[int, int]]
"""CUDA compute capability by GPU index."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that the job is to run on."""

    devices: tuple[DeviceCapacity, ...]
    """Memory available on the GPUs that the user chose, or on all."""
    snapshot: Snapshot | None = None
    """Snapshot of this machine; None: another machine is described, or this one's GPUs cannot be read."""
    chosen: bool = False
    """The user chose the GPUs; False: the job uses those that its environment makes visible."""
    host: HostRam | None = None
    """RAM; None: unknown, for a machine that is described."""
    unavailable_reason: str | None = None
    """Why this machine's GPUs cannot be read."""
    gpu_type: Gpu | None = None
    """Catalogue entry of the GPUs; None: not in the catalogue."""
    capabilities: Callable[[], Capabilities] = dict
    """Returns the compute capabilities that are known."""

    @property
    def is_described(self) -> bool:
        """True if the user described another machine than this one."""
        return self.snapshot is None and self.unavailable_reason is None

    @property
    def memory_bytes(self) -> int | None:
        """Memory of the largest GPU; None: unknown."""
        return max((device.total_bytes for device in self.devices if device.total_bytes), default=None)


def this_machine(
    select: Callable[[Snapshot], Collection[int] | None] = lambda _: None,
    *,
    timeout_seconds: float = DRIVER_TIMEOUT_SECONDS,
) -> Machine:
    """Return this machine as NVML reports it now.

    Args:
        select: chooses the GPUs to consider, by index; None: all.
        timeout_seconds: time limit for the driver.

    Raises:
        ProcessLimitError: no thread can be started to ask the driver.
    """
    host, source = available_host_memory(), NvmlSource(first_timeout=timeout_seconds)
    try:
        source.open()
        snapshot = source.read()
    except ProcessLimitError:
        raise
    except CannotTellError as error:
        return Machine(devices=(), unavailable_reason=error.message.rstrip("."), host=host)
    finally:
        source.close()
    indices = select(snapshot)
    devices = device_capacities(snapshot, Reservations().committed(snapshot), indices)
    return Machine(
        devices=devices,
        snapshot=snapshot,
        chosen=indices is not None,
        gpu_type=next((device.gpu_type for device in devices if device.name), None),
        capabilities=compute_capabilities,
        host=host,
    )


def described_machine(
    devices: tuple[DeviceCapacity, ...], gpu_type: Gpu | None, host: HostRam | None = None
) -> Machine:
    """Return a machine that is not this one."""
    known = {} if gpu_type is None else dict.fromkeys((each.index for each in devices), gpu_type.compute_capability)
    return Machine(devices=devices, gpu_type=gpu_type, capabilities=lambda: known, host=host)


def compute_capabilities() -> Capabilities:
    """Ask the driver for the compute capability of this machine's GPUs."""
    import pynvml

    found: dict[int, tuple[int, int]] = {}
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                with suppress(pynvml.NVMLError):
                    device = pynvml.nvmlDeviceGetHandleByIndex(index)
                    found[index] = pynvml.nvmlDeviceGetCudaComputeCapability(device)
        finally:
            shut_down(pynvml)
    return found


# Finds the Python interpreter that will run a job.


_PYTHON = re.compile(r"python[0-9.]*")
_SCRIPT = re.compile(rb"""\A\#!(?:/bin/sh\n'''exec'\s+"?|\s*)(?P<path>/[^\s"]+)(?:[ \t]+(?P<name>[^\s"$]+))?""")
"""The first lines of a console script; if the path is long, pip writes it after ``/bin/sh``."""
_OWN_PYTHON_WRAPPERS = {
    "conda",
    "mamba",
    "micromamba",
    "uv",
    "poetry",
    "pixi",
    "docker",
    "podman",
    "apptainer",
    "singularity",
}
"""Wrappers that run the program with a Python of their own choice."""


class JobInterpreter(msgspec.Struct, frozen=True, kw_only=True):
    """The Python interpreter that will run the job."""

    path: Path
    origin: str
    """Where it was read: ``--python``, ``torchrun``, ``VIRTUAL_ENV``."""
    is_certain: bool = True
    """False: nothing names it; it is vramtop's own."""


def find_job_interpreter(
    python: str | None, launch: Sequence[str] | None, environ: Mapping[str, str]
) -> JobInterpreter:
    """Return the Python that ``--python`` names, else the launch line's, else the active environment's, else vramtop's.

    Args:
        python: value of ``--python``.
        launch: the launch line; None: there is none.
        environ: environment of the job.

    Raises:
        InputError: ``python`` does not exist.
    """
    if python is not None:
        return JobInterpreter(path=find_interpreters(python, environ)[0], origin="--python")
    return (_find_in_launch_line(split_launch_line(launch), environ) if launch else None) or _find_active(environ)


def _find_in_launch_line(words: Sequence[str], environ: Mapping[str, str]) -> JobInterpreter | None:
    """Return the Python of a launch line: its program, or the one in the first line of its launcher's script."""
    at = find_program_index(words)
    if at is None or not _OWN_PYTHON_WRAPPERS.isdisjoint(PurePath(word).name for word in words[:at]):
        return None
    program = find_program(words[at], environ.get("PATH"))
    if program is None:
        return None
    if _PYTHON.fullmatch(program.name):
        return JobInterpreter(path=program.absolute(), origin=words[at])
    named = _read_script_interpreter(program, environ)
    return None if named is None else JobInterpreter(path=named, origin=words[at])


def _read_script_interpreter(program: Path, environ: Mapping[str, str]) -> Path | None:
    try:
        with open_file(program) as file:
            match = _SCRIPT.match(file.read(4096))
    except OSError:
        return None
    if match is None:
        return None
    path = match["path"]
    if PurePath(os.fsdecode(path)).name == "env":
        return find_program(os.fsdecode(match["name"] or b""), environ.get("PATH"))
    named = Path(os.fsdecode(path))
    return named if _PYTHON.fullmatch(named.name) and os.access(named, os.X_OK) else None


def _find_active(environ: Mapping[str, str]) -> JobInterpreter:
    found = find_interpreters(None, environ)[0]
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(variable) and found == Path(environ[variable]) / "bin" / "python":
            return JobInterpreter(path=found, origin=variable)
    return JobInterpreter(path=found, origin="the Python that runs vramtop", is_certain=False)


# Environment of a job that is started with a launch line, and the number of its ranks on one machine.


def job_environment(environ: Mapping[str, str], launch: Sequence[str] | None) -> dict[str, str]:
    """Return the job's environment: ours, and the assignments before its command."""
    found = dict(environ)
    if launch is None:
        return found
    parsed = parse_launch(split_launch_line(launch))
    found.update(parsed.assignments)
    return found


def count_local_ranks(job: Job, launch: Sequence[str] | None, environ: Mapping[str, str], folder: Path) -> int | None:
    """Return how many of the job's ranks run on one machine; None: not stated.

    Args:
        job: the job, with all of its ranks.
        launch: its launch line; None: there is none.
        environ: environment of the job; inside a Slurm allocation it states the number of machines.
        folder: folder that relative paths in the launch line count from.
    """
    ranks = job.parallel.world_size
    if launch is not None:
        parsed = parse_launch(split_launch_line(launch))
        world_size = read_world_size(parsed, LayeredSettings(parsed.options, _accelerate_file(parsed, folder)), environ)
        if as_int(world_size.ranks) == ranks and world_size.per_node is not None:
            return world_size.per_node
    nodes = environ.get("SLURM_NNODES", "")
    if nodes.isdecimal() and int(nodes) > 1 and ranks % int(nodes) == 0:
        return ranks // int(nodes)
    return None


def _accelerate_file(launch: Launch, folder: Path) -> SettingsLayer:
    named = launch.options.get("config_file")
    if named is None:
        return {}
    path = folder / str(named.value)
    try:
        return yaml_layer(read_table(path), source=path.name)
    except InputError:  # reported when the job is read
        return {}


# Files of a model in a folder: config, tokenizer, and the shards of its weights, complete or damaged.


_WEIGHTS = (
    ("model.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
"""A single file, or the index of several shards: in the order in which transformers does (modeling_utils.py)."""
_TOKENIZERS = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model"),
    *("tekken.json", "tokenizer_config.json", "preprocessor_config.json"),
)
_MAX_HEADER_BYTES = 16 * 2**20
"""safetensors itself allows 100 MB; a tensor takes about 100 bytes, and large models are split into shards."""
_MAX_INDEX_BYTES = 24 * 2**20
"""An index of 91,000 weights (DeepSeek-V3) takes 9 MB."""


class _Metadata(msgspec.Struct):
    total_size: Any = None


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: _Metadata | None = None


class _Tensor(msgspec.Struct):
    """One tensor of a safetensors header, or its ``__metadata__``, which has no offsets."""

    data_offsets: tuple[int, int] = (0, 0)


class ModelFolder(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a model that a folder contains."""

    config: bool
    tokenizer: bool
    shards: int
    """Expected files of weights; 0: there are neither weights nor an index."""
    missing: tuple[str, ...]
    """Names of missing files."""
    broken: tuple[str, ...]
    """Names of incomplete files, each with the reason."""
    weight_bytes: int
    """Size of the existing files of weights."""
    total_bytes: int | None
    """Size of all weights according to the index; None: there is no index, or it does not state the size."""

    @property
    def complete(self) -> bool:
        """True if config and weights are complete; a tokenizer may come from elsewhere."""
        return self.config and self.shards > 0 and not self.missing and not self.broken


def inspect_model_folder(folder: Path, *, single: tuple[str, ...] = ()) -> ModelFolder:
    """Return the files of a model in a folder.

    Args:
        folder: folder with a config.json, as transformers saves it.
        single: other names of a single file of weights, which are tried first.

    Raises:
        OSError: an index cannot be read.
    """
    names, total = _expected_files(folder, single)
    missing = tuple(name for name in names if not is_file(folder / name))
    present = [name for name in names if name not in missing]
    faults = {name: fault for name in present if (fault := _fault(folder / name))}
    return ModelFolder(
        config=is_file(folder / "config.json"),
        tokenizer=any(is_file(folder / name) for name in _TOKENIZERS),
        shards=len(names),
        missing=missing,
        broken=tuple(f"{name} ({fault})" for name, fault in faults.items()),
        weight_bytes=sum((folder / name).stat().st_size for name in present),
        total_bytes=total,
    )


def _expected_files(folder: Path, single: tuple[str, ...]) -> tuple[list[str], int | None]:
    """Return the names of the files of weights, and their total bytes if an index states them."""
    for name in single:
        if is_file(folder / name):
            return [name], None
    for file, index in _WEIGHTS:
        if is_file(folder / file):
            return [file], None
        if is_file(folder / index):
            return _from_index(folder / index)
    return [], None


def _from_index(path: Path) -> tuple[list[str], int | None]:
    try:
        index = decode_json(read_file(path, _MAX_INDEX_BYTES), _Index)
    except (TooLargeError, LimitError):
        return [path.name], None  # reported as a broken file
    total = index.metadata.total_size if index.metadata else None
    return sorted(set(index.weight_map.values())), total if isinstance(total, int) else None


def _fault(path: Path) -> str | None:
    """Return why a file is incomplete; None: it looks complete."""
    size = path.stat().st_size
    if size == 0:
        return "empty"
    if path.suffix == ".json":
        return "no index of shards"
    if path.suffix != ".safetensors":
        return None
    with open_file(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_MAX_HEADER_BYTES, size):
            return "no safetensors header"
        try:
            header = decode_json(file.read(length), dict[str, _Tensor])
        except LimitError:
            return "no safetensors header"
    whole = 8 + length + max((tensor.data_offsets[1] for tensor in header.values()), default=0)
    return f"{size:,} of {whole:,} bytes" if size < whole else None


# Location of a job's model: a folder, the Hugging Face cache, or the hub.


_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_REVISION = re.compile(r"[\w.-]+")


class ModelLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Location of a job's model."""

    folder: Path | None
    """Folder with its files; None: not in the cache."""
    hub_id: str | None
    """None: a folder of the user's own."""


def find_model_location(job: Job, environ: Mapping[str, str]) -> ModelLocation | None:
    """Return the location of the weights; None if the job has its config inline, or its model is code."""
    name = job.model.id
    if name is None or job.model.config is not None or names_user_code(name):
        return None
    path = expand_user(name)
    if is_folder(path) or name.startswith((".", "/", "~")) or name.endswith(".json"):
        return ModelLocation(folder=path.parent if name.endswith(".json") else path, hub_id=None)
    cached = _cached_snapshot(name, environ)
    built_in = find_built_in(name) if cached is None and "/" not in name else None
    hub_id = built_in.id if built_in else name
    return ModelLocation(folder=cached or _cached_snapshot(hub_id, environ), hub_id=hub_id)


def inspect_model(location: ModelLocation, job: Job) -> ModelFolder | None:
    """Return the files of the model that are on the disk; None if there is no folder.

    Raises:
        OSError: an index cannot be read.
    """
    if location.folder is None:
        return None
    checkpoint_file = FRAMEWORKS[job.training.framework].checkpoint_file
    return inspect_model_folder(location.folder, single=(checkpoint_file,) if checkpoint_file else ())


def is_downloaded(location: ModelLocation, job: Job) -> bool:
    """Return True if all files of the model are on the disk."""
    folder = inspect_model(location, job)
    return folder is not None and folder.complete


def _cached_snapshot(name: str, environ: Mapping[str, str]) -> Path | None:
    """Return the cached snapshot of ``main``, which libraries load by default."""
    if not _HUB_ID.fullmatch(name):
        return None
    repository = cached_model(name, environ)
    try:
        revision = read_file(repository / "refs" / "main").decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    folder = repository / "snapshots" / revision
    return folder if _REVISION.fullmatch(revision) and is_folder(folder) else None


# Python packages that a job needs, by its settings.


_ATTENTION_LIBRARIES = {
    "flash_attention_2": ("flash-attn", "kernels"),
    "flash_attention_3": ("flash-attn-3", "kernels"),
}
"""Distributions by ``model.attention``, of which one is enough."""
_SETTING_LIBRARIES = ("peft", "bitsandbytes", "liger-kernel", "unsloth", "vllm", "sglang")
"""Distributions that single settings need."""
DISTRIBUTIONS = tuple(
    dict.fromkeys(
        (
            *(name for row in FRAMEWORKS.values() for name in (*row.libraries, *row.training_libraries)),
            *(name for row in STRATEGIES.values() for name in row.libraries),
            *(name for names in _ATTENTION_LIBRARIES.values() for name in names),
            *(
                name
                for row in OPTIMIZERS.values()
                for name in (*row.libraries, *row.trainer_libraries, *row.other_libraries)
            ),
            *_SETTING_LIBRARIES,
        )
    )
)
"""All distributions that ``required_libraries`` may name."""


class RequiredLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """A library that the job needs."""

    alternatives: tuple[str, ...]
    """Distributions, of which one is enough; the first is the usual one."""
    reason: str


def required_libraries(job: Job) -> Iterator[RequiredLibrary]:
    """Yield the libraries that a job needs, each with the setting that needs it."""
    training, framework = job.training, FRAMEWORKS[job.training.framework]
    strategy, optimizer = STRATEGIES[job.parallel.strategy], OPTIMIZERS.get(job.training.optimizer)
    if job.is_served:
        engine = job.inference.engine if job.inference else ""
        for library in ("torch", engine):
            yield RequiredLibrary(alternatives=(library,), reason=f"engine = {engine}")
        return
    trains, uses_trainer = training.mode == "train", framework.name == "transformers"
    for name in (*framework.libraries, *(framework.training_libraries if trains else ())):
        yield RequiredLibrary(alternatives=(name,), reason=f"framework = {framework.name}")
    if job.lora and uses_trainer:
        yield RequiredLibrary(alternatives=("peft",), reason="LoRA adapters")
    if job.lora and job.lora.quantization != "none":
        yield RequiredLibrary(alternatives=("bitsandbytes",), reason=f"quantization = {job.lora.quantization}")
    if trains and optimizer is not None:
        for name in (*optimizer.libraries, *(optimizer.trainer_libraries if uses_trainer else ())):
            alternatives = (name, *optimizer.other_libraries)
            yield RequiredLibrary(alternatives=alternatives, reason=f"optimizer = {optimizer.name}")
    if trains and job.rollout is not None and job.rollout.engine == "vllm":
        yield RequiredLibrary(alternatives=("vllm",), reason="rollout.engine = vllm")
    if job.model.attention in _ATTENTION_LIBRARIES:
        alternatives = _ATTENTION_LIBRARIES[job.model.attention]
        yield RequiredLibrary(alternatives=alternatives, reason=f"attention = {job.model.attention}")
    if strategy.libraries and framework.name != "megatron":  # Megatron-LM brings its own
        yield RequiredLibrary(alternatives=strategy.libraries, reason=f"strategy = {strategy.name}")
    if trains and training.fused_kernels:
        kernels = ", ".join(training.fused_kernels)
        yield RequiredLibrary(alternatives=("liger-kernel", "unsloth"), reason=f"fused_kernels = {kernels}")
    elif training.loss in ("fused-linear", "fused-log-probs") and uses_trainer:
        yield RequiredLibrary(alternatives=("liger-kernel",), reason=f"loss = {training.loss}")


# Folders that a job writes to: whether they can be written to, and how much space is free.


def nearest_existing_folder(path: Path) -> Path:
    """Return the folder itself, else the nearest folder above it that exists."""
    path = path.absolute()
    return next((folder for folder in (path, *path.parents) if is_folder(folder)), Path("/"))


def free_bytes(path: Path) -> int:
    """Return the free bytes for this user on the disk of the folder, whether it exists or not; quotas are not included.

    Raises:
        OSError: the disk cannot be read.
    """
    disk = os.statvfs(nearest_existing_folder(path))
    return disk.f_bavail * disk.f_frsize


def has_no_inodes(path: Path) -> bool:
    """Return True if no more files can be created there, whatever their size. Some file systems do not count inodes."""
    disk = os.statvfs(nearest_existing_folder(path))
    return disk.f_files > 0 and disk.f_favail == 0


def write_error(path: Path) -> str | None:
    """Return why no file can be created in the folder, or in the nearest one above it; None: one can."""
    blocked = next((part for part in (path, *path.parents) if os.access(part, os.F_OK) and not is_folder(part)), None)
    if blocked is not None:
        return f"{blocked} is a file"
    try:
        with tempfile.TemporaryFile(dir=nearest_existing_folder(path)):
            return None
    except OSError as error:
        return f"{nearest_existing_folder(path)}: {error.strerror}"


# Access to a model on the Hugging Face hub: whether its files may be downloaded with the token that is set.


def query_hub_access(model: str, environ: Mapping[str, str]) -> Refusal:
    """Request the header of the model's config.json, to which the same restrictions apply as to its weights.

    A redirection is not followed: it shows that access is granted (``open``).

    Args:
        model: hub id.
        environ: environment with HF_ENDPOINT, the token and the offline variables.
    """
    answer = ask_hub(model, environ, limits.HUB_ACCESS, method="HEAD")
    return answer if isinstance(answer, Refusal) else Refusal("open", f"{hub_host(environ)} gives it")
