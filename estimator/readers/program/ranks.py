"""The number of ranks of a job: from a worker's environment, or from its launcher's settings."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..source import LayeredSettings, Setting, SettingsLayer, as_int, default_setting, parse_digits
from .accelerate_env import environment_layer
from .launchers import Launch, count_world_info_ranks

_SET_RANK = {"torchrun", "accelerate", "deepspeed", "trl"}
"""Launchers that set RANK for every process when there are several."""
_SEVERAL_RANKS = ("multi_gpu", "use_fsdp", "use_deepspeed", "use_parallelism_config")
"""Settings of accelerate that mean more than one rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSize:
    """The number of ranks of a job."""

    ranks: Setting | None
    """None: unknown."""
    per_node: int | None = None
    """Ranks on each machine; None: unknown."""


def read_world_size(
    launch: Launch,
    accelerate: LayeredSettings,
    environ: Mapping[str, str],
    *,
    started: bool = False,
    self_started_ranks: int | None = None,
) -> WorldSize:
    """Return the number of ranks: for a worker from its environment, for a launch line from the launcher's settings.

    Args:
        launch: the launcher's command line.
        accelerate: settings by accelerate's names, the launcher's own among them.
        environ: the environment of the worker or of the launch line; empty where it is hidden.
        started: the worker is already running apart from its launcher, so variables that are not set never will be.
        self_started_ranks: ranks that the program has started itself.
    """
    if self_started_ranks is not None:
        origin = f"{self_started_ranks} processes that it started hold GPU memory"
        return WorldSize(ranks=default_setting(self_started_ranks, origin), per_node=self_started_ranks)
    environment = environment_layer(environ)
    from_environment = WorldSize(
        ranks=environment.get("num_processes"), per_node=as_int(environment.get("processes_per_node"))
    )
    if "RANK" in environ and from_environment.ranks is not None:
        return from_environment
    launchers = set(launch.launchers)
    if started and environ and launchers & _SET_RANK and "tool" not in launchers:
        return WorldSize(ranks=default_setting(1, f"{launch.launchers[-1]} set no RANK: a single process"))
    if "torchrun" in launchers:
        return _torchrun_ranks(launch.options, environ)
    if "deepspeed" in launchers:
        return _deepspeed_ranks(launch.options, environ)
    if not launchers.isdisjoint(("accelerate", "trl", "tool")):
        return _accelerate_ranks(accelerate, environ)
    if as_int(from_environment.ranks):
        return from_environment
    return WorldSize(ranks=default_setting(1, "no launcher: a single process"))


def visible_gpus(environ: Mapping[str, str]) -> Setting | None:
    """Return the number of GPUs in CUDA_VISIBLE_DEVICES, as the number of ranks; None if it names none."""
    visible = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return default_setting(len(visible), "the GPUs in CUDA_VISIBLE_DEVICES") if visible else None


def processes_per_node(environ: Mapping[str, str]) -> dict[str, Setting]:
    """Return the number of processes that LLaMA-Factory and ms-swift let torchrun start, from the environment."""
    per_node, nodes = parse_digits(environ.get("NPROC_PER_NODE", "")), parse_digits(environ.get("NNODES") or "1")
    if per_node is None or nodes is None:
        return {}
    origin = f"NPROC_PER_NODE{' times NNODES' if nodes != 1 else ''} in the environment"
    return {
        "num_processes": Setting(value=per_node * nodes, origin=origin),
        "num_machines": Setting(value=nodes, origin=origin),
    }


def _accelerate_ranks(accelerate: LayeredSettings, environ: Mapping[str, str]) -> WorldSize:
    ranks = accelerate.find("num_processes") or visible_gpus(environ)
    if ranks is None and not any(accelerate.is_true(name) for name in _SEVERAL_RANKS):
        ranks = default_setting(1, "one process unless set otherwise")
    total, machines = as_int(ranks), as_int(accelerate.find("num_machines")) or 1
    return WorldSize(ranks=ranks, per_node=total // machines if total else None)


def _torchrun_ranks(options: SettingsLayer, environ: Mapping[str, str]) -> WorldSize:
    processes = options.get("nproc_per_node", default_setting(1, "torchrun's default"))
    per_node = as_int(processes)
    if per_node is None:  # "gpu" or "auto": as many as there are GPUs
        visible = visible_gpus(environ)
        per_node = as_int(visible)
        processes = visible or processes
    nodes = parse_digits(str(options["nnodes"].value).rpartition(":")[2]) if "nnodes" in options else 1
    if per_node is None or not nodes:
        return WorldSize(ranks=None)
    origin = processes.origin if nodes == 1 else f"{processes.origin} times {options['nnodes'].origin}"
    ranks = Setting(value=per_node * nodes, origin=origin, written=processes.written)
    return WorldSize(ranks=ranks, per_node=per_node)


def _deepspeed_ranks(options: SettingsLayer, environ: Mapping[str, str]) -> WorldSize:
    if "world_info" in options:
        total = count_world_info_ranks(str(options["world_info"].value))
        return WorldSize(ranks=Setting(value=total, origin="--world_info of deepspeed") if total else None)
    processes, include = options.get("num_gpus"), options.get("include")
    if processes is None and include is not None and ":" in str(include.value):
        hosts = str(include.value).split("@")
        return WorldSize(ranks=include.with_value(sum(len(host.partition(":")[2].split(",")) for host in hosts)))
    processes = processes or visible_gpus(environ)
    per_node, nodes = as_int(processes), as_int(options.get("num_nodes")) or 1
    if processes is None or per_node is None:
        return WorldSize(ranks=None)
    return WorldSize(ranks=processes.with_value(per_node * nodes), per_node=per_node)
