"""How many ranks a job has: from the environment of a worker, or from what a launcher was told."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..source.settings import LayeredSettings, Setting, SettingsLayer, as_int, parse_digits
from .accelerate_env import environment_layer
from .launchers import Launch, count_world_info_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSize:
    """How many ranks there are."""

    ranks: Setting | None
    """None: nobody says."""
    per_node: int | None = None
    """Ranks per machine."""


_NUMBER_THEIRS = {"torchrun", "accelerate", "deepspeed", "trl"}
"""Launchers that give every process of several its RANK."""


def read_world_size(
    launch: Launch,
    accelerate: LayeredSettings,
    environ: Mapping[str, str],
    *,
    started: bool = False,
    self_started_ranks: int | None = None,
) -> WorldSize:
    """How many ranks: of a worker, what its environment says; of a launch line, what the launcher will start.

    Args:
        launch: of the launcher.
        accelerate: settings by accelerate's names, the launcher's own among them.
        environ: of the worker, or of the launch line; empty where it is hidden.
        started: the worker runs already, apart from its launcher: what it was not given, it has not.
        self_started_ranks: ranks that the program has started itself.
    """
    if self_started_ranks is not None:
        origin = f"{self_started_ranks} processes that it started hold GPU memory"
        return WorldSize(
            ranks=Setting(value=self_started_ranks, origin=origin, written=False), per_node=self_started_ranks
        )
    environment = environment_layer(environ)
    if "RANK" in environ and "num_processes" in environment:
        return WorldSize(ranks=environment["num_processes"], per_node=as_int(environment.get("processes_here")))
    options, launchers = launch.options, set(launch.launchers)
    if started and environ and launchers & _NUMBER_THEIRS and "tool" not in launchers:
        origin = f"{launch.launchers[-1]} gave it no RANK: a single process"
        return WorldSize(ranks=Setting(value=1, origin=origin, written=False))
    if "torchrun" in launchers:
        return _torchrun_world(options, environ)
    if "deepspeed" in launchers:
        return _deepspeed_world(options, environ)
    if not launchers.isdisjoint(("accelerate", "trl", "tool")):
        ranks = accelerate.find("num_processes")
        machines = as_int(accelerate.find("num_machines")) or 1
        if ranks is None:
            ranks = visible_gpus(environ)
        if ranks is None and not _many(accelerate):
            ranks = Setting(value=1, origin="one process unless told otherwise", written=False)
        total = as_int(ranks)
        return WorldSize(ranks=ranks, per_node=total // machines if total else None)
    if as_int(environment.get("num_processes")):
        return WorldSize(ranks=environment["num_processes"], per_node=as_int(environment.get("processes_here")))
    return WorldSize(ranks=Setting(value=1, origin="no launcher: a single process", written=False))


def _many(accelerate: LayeredSettings) -> bool:
    return any(
        accelerate.is_true(name) for name in ("multi_gpu", "use_fsdp", "use_deepspeed", "use_parallelism_config")
    )


def _torchrun_world(options: SettingsLayer, environ: Mapping[str, str]) -> WorldSize:
    per_node = options.get("nproc_per_node", Setting(value=1, origin="torchrun's default", written=False))
    here = as_int(per_node)
    if here is None:  # "gpu", "auto": as many as there are
        visible = visible_gpus(environ)
        here = as_int(visible)
        per_node = visible or per_node
    nodes = parse_digits(str(options["nnodes"].value).rpartition(":")[2]) if "nnodes" in options else 1
    if here is None or not nodes:
        return WorldSize(ranks=None)
    origin = per_node.origin if nodes == 1 else f"{per_node.origin} times {options['nnodes'].origin}"
    return WorldSize(ranks=Setting(value=here * nodes, origin=origin, written=per_node.written), per_node=here)


def _deepspeed_world(options: SettingsLayer, environ: Mapping[str, str]) -> WorldSize:
    if "world_info" in options:
        total = count_world_info_ranks(str(options["world_info"].value))
        return WorldSize(ranks=Setting(value=total, origin="--world_info of deepspeed") if total else None)
    per_node = options.get("num_gpus")
    if per_node is None and "include" in options and ":" in str(options["include"].value):
        hosts = str(options["include"].value).split("@")
        total = sum(len(host.partition(":")[2].split(",")) for host in hosts)
        return WorldSize(ranks=Setting(value=total, origin=options["include"].origin))
    per_node = per_node or visible_gpus(environ)
    here, nodes = as_int(per_node), as_int(options.get("num_nodes")) or 1
    if per_node is None or here is None:
        return WorldSize(ranks=None)
    return WorldSize(ranks=Setting(value=here * nodes, origin=per_node.origin, written=per_node.written), per_node=here)


def visible_gpus(environ: Mapping[str, str]) -> Setting | None:
    """As many ranks as CUDA_VISIBLE_DEVICES names GPUs."""
    visible = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if not visible:
        return None
    return Setting(value=len(visible), origin="the GPUs in CUDA_VISIBLE_DEVICES", written=False)


def processes_per_node(environ: Mapping[str, str]) -> dict[str, Setting]:
    """What LLaMA-Factory and ms-swift are told by the environment: how many processes torchrun is to start."""
    per_node, nodes = parse_digits(environ.get("NPROC_PER_NODE", "")), parse_digits(environ.get("NNODES") or "1")
    if per_node is None or nodes is None:
        return {}
    several = " times NNODES" if nodes != 1 else ""
    origin = f"NPROC_PER_NODE{several} in the environment"
    return {
        "num_processes": Setting(value=per_node * nodes, origin=origin),
        "num_machines": Setting(value=nodes, origin=origin),
    }
