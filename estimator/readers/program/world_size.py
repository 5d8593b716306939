"""The number of ranks of a job: from a worker's environment, or from its launcher's settings."""

from collections.abc import Mapping

import msgspec

from ...job.settings import MAX_GPUS
from ..source.evidence import FindingCollector
from ..source.settings import LayeredSettings, Setting, SettingsLayer, as_int, parse_digits, refusal
from .accelerate import environment_layer
from .launch import Launch

_MAX_GPUS_OF_MACHINE = 1024
"""Servers have 8 or 16 GPUs, the largest racks 144 (NVIDIA's NVL144)."""
_DEVICE_WORDS = ("gpu", "auto", "cpu", "xpu")
"""torchrun's words for as many processes as there are devices."""
_SET_RANK = {"torchrun", "accelerate", "deepspeed", "trl"}
"""Launchers that set RANK for every process when there are several."""
_BY_ACCELERATE = "accelerate starts one process per GPU unless --num_processes is given"
_BY_DEEPSPEED = "deepspeed starts one process per GPU unless --num_gpus is given"
_SEVERAL_RANKS = ("multi_gpu", "use_fsdp", "use_deepspeed", "use_parallelism_config")
"""Settings of accelerate that mean more than one rank."""


class WorldSize(msgspec.Struct, frozen=True, kw_only=True):
    """The number of ranks of a job."""

    ranks: Setting | None
    """None: unknown."""
    per_node: int | None = None
    """Ranks on each machine; None: unknown."""
    one_per_gpu: str | None = None
    """What starts one rank for each GPU of a machine that is not known, of which one is counted; None: nothing."""
    refused: str | None = None
    """A sentence, without a full stop, on what is written and makes no sense; the number of ranks is unknown then."""


def read_world_size(
    launch: Launch,
    accelerate: LayeredSettings,
    environ: Mapping[str, str],
    *,
    started: bool = False,
    self_started_ranks: int | None = None,
    findings: FindingCollector | None = None,
) -> WorldSize:
    """Return the number of ranks: for a worker from its environment, for a launch line from the launcher's settings.

    Args:
        launch: the launcher's command line.
        accelerate: settings by accelerate's names, the launcher's own among them.
        environ: the environment of the worker or of the launch line; empty where it is hidden.
        started: the worker is already running apart from its launcher, so variables that are not set never will be.
        self_started_ranks: ranks that the program has started itself.
        findings: collects a number that makes no sense.
    """
    found = _checked(_find_world_size(launch, accelerate, environ, started, self_started_ranks))
    if findings is not None and found.refused is not None:
        findings.refuse_ranks(found.refused)
    return found


def checked_ranks(written: Setting | None, findings: FindingCollector) -> WorldSize:
    """Return a number of ranks that is written; none if it makes no sense, which is recorded."""
    found = _checked(WorldSize(ranks=written))
    if found.refused is not None:
        findings.refuse_ranks(found.refused)
    return found


def _checked(world: WorldSize) -> WorldSize:
    """Return the number of ranks, or why it makes no sense."""
    if world.ranks is None:
        return world
    written, number = world.ranks.value, as_int(world.ranks)
    if number is None and isinstance(written, int) and written > MAX_GPUS:
        number = written
    if number is None:
        return WorldSize(ranks=None, refused=refusal(world.ranks, "number of ranks"))
    if world.per_node is not None and world.per_node > _MAX_GPUS_OF_MACHINE:
        sentence = f"{world.ranks.origin}: {world.per_node:,} ranks on a machine are more GPUs than any machine has"
        return WorldSize(ranks=None, refused=f"{sentence} (at most {_MAX_GPUS_OF_MACHINE:,})")
    if number > MAX_GPUS:
        sentence = f"{world.ranks.origin}: {number:,} ranks are more GPUs than any cluster has"
        return WorldSize(ranks=None, refused=f"{sentence} (at most {MAX_GPUS:,})")
    return world


def _find_world_size(
    launch: Launch,
    accelerate: LayeredSettings,
    environ: Mapping[str, str],
    started: bool,
    self_started_ranks: int | None,
) -> WorldSize:
    """Return the number of ranks as it is written, which may make no sense; see ``read_world_size``."""
    if self_started_ranks is not None:
        origin = f"{self_started_ranks} processes that it started hold GPU memory"
        return WorldSize(ranks=Setting.default(self_started_ranks, origin), per_node=self_started_ranks)
    environment = environment_layer(environ)
    from_environment = WorldSize(
        ranks=environment.get("num_processes"), per_node=as_int(environment.get("processes_per_node"))
    )
    if "RANK" in environ and from_environment.ranks is not None:
        return from_environment
    launchers = set(launch.launchers)
    if started and environ and launchers & _SET_RANK and "tool" not in launchers:
        return WorldSize(ranks=Setting.default(1, f"{launch.launchers[-1]} did not set RANK: a single process"))
    if "torchrun" in launchers:
        return _torchrun_ranks(launch.options, environ)
    if "deepspeed" in launchers:
        return _deepspeed_ranks(launch.options, environ)
    if not launchers.isdisjoint(("accelerate", "trl", "tool")):
        return _accelerate_ranks(accelerate, environ, is_tool="tool" in launchers)
    if from_environment.ranks is not None:
        return from_environment
    if "srun" in launchers:
        return WorldSize(ranks=launch.options.get("num_processes"))
    return WorldSize(ranks=Setting.default(1, "no launcher: a single process"))


def visible_gpus(environ: Mapping[str, str]) -> Setting | None:
    """Return the number of GPUs in CUDA_VISIBLE_DEVICES or Slurm's allocation as the world size; None: unknown."""
    visible = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if visible:
        return Setting.default(len(visible), "the GPUs in CUDA_VISIBLE_DEVICES")
    given = parse_digits(environ.get("SLURM_GPUS_ON_NODE", ""))
    return Setting.default(given, "the GPUs that Slurm gives (SLURM_GPUS_ON_NODE)") if given else None


def processes_per_node(environ: Mapping[str, str]) -> dict[str, Setting]:
    """Return the number of processes that LLaMA-Factory and ms-swift let torchrun start, from the environment."""
    written = {name: environ[name] for name in ("NPROC_PER_NODE", "NNODES") if environ.get(name)}
    if "NPROC_PER_NODE" not in written:
        return {}
    per_node, nodes = (parse_digits(written.get(name, "1")) for name in ("NPROC_PER_NODE", "NNODES"))
    if not per_node or not nodes:
        name = "NNODES" if per_node else "NPROC_PER_NODE"
        return {"num_processes": Setting(value=written[name], origin=f"{name} in the environment")}
    origin = f"NPROC_PER_NODE{' times NNODES' if nodes != 1 else ''} in the environment"
    return {
        "num_processes": Setting(value=per_node * nodes, origin=origin),
        "num_machines": Setting(value=nodes, origin=origin),
    }


def _one_per_gpu(starts: str, nodes: int) -> WorldSize:
    """Return one rank for each GPU of a machine that is not known; of several machines nothing is known."""
    if nodes > 1:
        return WorldSize(ranks=None)
    return WorldSize(ranks=Setting.default(1, "one process per GPU"), per_node=1, one_per_gpu=starts)


def _accelerate_ranks(accelerate: LayeredSettings, environ: Mapping[str, str], *, is_tool: bool) -> WorldSize:
    """Return the ranks that accelerate starts: torch.cuda.device_count() unless set (accelerate commands/launch.py)."""
    ranks = accelerate.find("num_processes") or visible_gpus(environ)
    if ranks is None and not any(accelerate.is_true(name) for name in _SEVERAL_RANKS):
        one = Setting.default(1, "one process unless set otherwise")
        by_tool = accelerate.find("tool_one_per_gpu")
        starts = (by_tool.origin if by_tool is not None else None) if is_tool else _BY_ACCELERATE
        return WorldSize(ranks=one, per_node=1, one_per_gpu=None if accelerate.is_true("cpu", "use_cpu") else starts)
    total, machines = as_int(ranks), as_int(accelerate.find("num_machines")) or 1
    return WorldSize(ranks=ranks, per_node=total // machines if total else None)


def _torchrun_ranks(options: SettingsLayer, environ: Mapping[str, str]) -> WorldSize:
    processes = options.get("nproc_per_node", Setting.default(1, "torchrun's default"))
    per_node = as_int(processes)
    if per_node is None and processes.value not in _DEVICE_WORDS:
        return WorldSize(ranks=processes)
    if per_node is None:  # as many as there are GPUs
        visible = visible_gpus(environ)
        per_node = as_int(visible)
        processes = visible or processes
    given = options.get("nnodes", Setting.default(1, "torchrun's default"))
    nodes = as_int(given.with_value(str(given.value).rpartition(":")[2]))
    if nodes is None:
        return WorldSize(ranks=given)
    if per_node is None:
        return _one_per_gpu(f"torchrun starts one process per GPU ({processes.origin})", nodes)
    origin = processes.origin if nodes == 1 else f"{processes.origin} times {options['nnodes'].origin}"
    ranks = Setting(value=per_node * nodes, origin=origin, written=processes.written)
    return WorldSize(ranks=ranks, per_node=per_node)


def _deepspeed_ranks(options: SettingsLayer, environ: Mapping[str, str]) -> WorldSize:
    if "world_info" in options:  # of the launcher on each node, in base64
        return WorldSize(ranks=None)
    processes, include = options.get("num_gpus"), options.get("include")
    if processes is None and include is not None and ":" in str(include.value):
        hosts = str(include.value).split("@")
        return WorldSize(ranks=include.with_value(sum(len(host.partition(":")[2].split(",")) for host in hosts)))
    processes = processes or visible_gpus(environ)
    machines = options.get("num_nodes", Setting.default(1, "deepspeed's default"))
    per_node, nodes = as_int(processes), 1 if str(machines.value) == "-1" else as_int(machines)
    if nodes is None:
        return WorldSize(ranks=machines)
    if processes is None or str(processes.value) == "-1":
        return _one_per_gpu(_BY_DEEPSPEED, nodes)
    if per_node is None:
        return WorldSize(ranks=processes)
    return WorldSize(ranks=processes.with_value(per_node * nodes), per_node=per_node)
