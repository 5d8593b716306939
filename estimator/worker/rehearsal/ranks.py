"""One rank of a program that runs on several GPUs: launchers, process groups, DistributedDataParallel, FSDP.

A launcher (``torchrun``, ``accelerate launch``, ``mp.spawn``) runs itself and starts rank 0 in this process. Process
groups have all ranks and no peers (``torch.testing._internal.distributed.fake_pg``): collectives do nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..replaced import replaced
from .fake_gpu import program_line
from .imports import after_import
from .sharding import labels_of_fsdp1, labels_of_fsdp2, streams_of_fsdp1

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import ModuleType

    from .fake_gpu import FakeGpus

_STRATEGIES = {
    "DistributedDataParallel": "ddp",
    "FullyShardedDataParallel": "fsdp1",
    "FSDPModule": "fsdp2",
    "MegatronFSDP": "megatron-fsdp",
}
_ACCELERATE = ("accelerate.commands.accelerate_cli", "accelerate.commands.launch")
_DEEPSPEED = "deepspeed.launcher.runner"


def start(words: Sequence[str], gpus: FakeGpus) -> None:
    """Run a program as Python does: ``FILE ARGS``, ``-m MODULE ARGS`` or ``-c CODE ARGS``."""
    if words[0] == "-m" and words[1] in _ACCELERATE:
        _launch_with_accelerate(words[3:] if words[2:3] == ["launch"] else words[2:], gpus)
    elif words[0] == "-m" and words[1] == _DEEPSPEED:
        _launch_with_deepspeed(words[2:], gpus)
    elif words[0] == "-m":
        sys.argv = list(words[1:])
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as Python does
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - the user's own program
    else:
        sys.argv = list(words)
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")


def _launch_with_accelerate(words: Sequence[str], gpus: FakeGpus) -> None:
    """Run ``accelerate launch`` until it would start processes: several ones are torch's launcher's."""
    from accelerate.commands import launch
    from accelerate.utils import launch as commands

    def one_process(args: Any) -> None:
        command, variables = commands.prepare_simple_launcher_cmd_env(args)
        os.environ.update(variables)
        _start_rank(command[1:], gpus)

    several_processes = launch.deepspeed_launcher

    def deepspeed(args: Any) -> None:
        if args.num_machines > 1 and args.deepspeed_multinode_launcher != "standard":
            raise NotImplementedError("write --deepspeed_multinode_launcher standard: a rehearsal starts no other node")
        several_processes(args)

    args = launch.launch_command_parser().parse_args(words)
    gpus.count = max(gpus.count, (args.num_processes or 1) // (args.num_machines or 1))  # else it starts one process
    stand_ins: list[tuple[Any, str, Any]] = [
        (launch, "simple_launcher", one_process),
        (launch, "deepspeed_launcher", deepspeed),
    ]
    if hasattr(commands, "is_port_in_use"):  # by the run itself, which may be rehearsed beside it
        stand_ins.append((commands, "is_port_in_use", lambda _=None: False))
    with replaced(*stand_ins):
        launch.launch_command(args)


def _launch_with_deepspeed(words: Sequence[str], gpus: FakeGpus) -> None:
    """Start rank 0 of the launcher ``deepspeed``, as ``launcher/launch.py`` does on each node (0.19)."""
    runner = import_module(_DEEPSPEED)
    args = runner.parse_args(list(words))
    named = [int(each) for each in re.findall(r"[:,](\d+)", f"{args.include}{args.exclude}")]
    pool = runner.fetch_hostfile(args.hostfile) or {"localhost": max([gpus.count, *(each + 1 for each in named)])}
    nodes = list(map(len, runner.parse_inclusion_exclusion(pool, args.include, args.exclude).values()))
    if args.num_nodes > 0:
        nodes = nodes[: args.num_nodes] if len(nodes) > 1 else nodes * args.num_nodes
    if args.num_gpus > 0:
        nodes = [args.num_gpus] * len(nodes)
    gpus.count = max(gpus.count, nodes[0])
    os.environ.update(_environment_of_rank_0(nodes[0], len(nodes)), WORLD_SIZE=str(sum(nodes)))
    own = [] if args.no_local_rank else ["--local_rank=0"]
    _start_rank([*["-m"] * args.module, args.user_script, *own, *args.user_args], gpus)


def _start_rank(words: Sequence[str], gpus: FakeGpus) -> None:
    """Start what a launcher gives Python."""
    start([word for at, word in enumerate(words) if at or word != "-u"], gpus)


def parallel_of(modules: Iterable[Any], ranks: int) -> dict[str, Any]:
    """Return how a program is spread over its ranks, as in a job file; one that does it itself is taken for copies.

    Args:
        modules: those that the program calls itself.
        ranks: of the program.
    """
    if ranks < 2:
        return {}
    found: set[str] = set()
    for module in modules:
        for each in module.modules():
            found.update(_STRATEGIES[kind.__name__] for kind in type(each).__mro__ if kind.__name__ in _STRATEGIES)
            if hasattr(each, "zero_optimization_stage"):
                found.add(f"zero{each.zero_optimization_stage()}")
            if any(hasattr(parameter, "placements") for parameter in each.parameters(recurse=False)):
                found.add("tensor")
    shards = next(
        (each for each in ("zero1", "zero2", "zero3", "fsdp1", "fsdp2", "megatron-fsdp") if each in found), None
    )
    if shards is not None:
        return {"strategy": shards, "data_shard": ranks}
    return {"tensor": ranks} if found == {"tensor"} else {"strategy": "ddp", "data_replicate": ranks}


def many_ranks(gpus: FakeGpus) -> Iterator[tuple[Any, str, Any]]:
    """Yield stand-ins for what needs other ranks."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    from torch import multiprocessing
    from torch.distributed import device_mesh, distributed_c10d as c10d
    from torch.distributed.elastic.utils import macros
    from torch.distributed.launcher.api import elastic_launch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def launched(self: Any, *words: Any) -> dict[int, Any]:
        ranks, machines = self._config.nproc_per_node, self._config.max_nodes
        gpus.count = max(gpus.count, ranks)
        os.environ.update(_environment_of_rank_0(ranks, machines))
        if callable(self._entrypoint):  # of accelerate's notebook_launcher
            return {0: self._entrypoint(*words)}
        _start_rank(macros.substitute([*words], "0"), gpus)
        return {}

    def start_processes(fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any) -> Any:
        gpus.count = max(gpus.count, nprocs)
        fn(0, *args)
        return None if join else SimpleNamespace(join=lambda *_, **__: True, pids=lambda: [os.getpid()], processes=[])

    def rendezvous(url: str, rank: int = -1, world_size: int = -1, **_: Any) -> Iterator[Any]:  # noqa: ARG001
        ranks = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        yield FakeStore(), rank if rank >= 0 else int(os.environ.get("RANK", "0")), ranks

    open_groups, make_group = c10d.init_process_group, c10d._new_process_group_helper

    def opened(*args: Any, **kwargs: Any) -> None:
        kwargs.pop("device_id", None)
        open_groups(*args, **kwargs)

    def group(
        group_size: int, group_rank: int, global_ranks_in_group: Any, backend: Any, *args: Any, **kwargs: Any
    ) -> Any:
        ranks = global_ranks_in_group
        if not ranks:
            gpus.ranks = group_size
        if str(backend) not in ("gloo", "mpi") and (not ranks or dist.get_rank() in ranks):
            gpus.groups.append(group_size)
        kwargs.pop("backend_options", None)
        return make_group(group_size, group_rank, ranks, "fake", *args, **kwargs)

    @contextlib.contextmanager
    def one_by_one(*_: Any, **__: Any) -> Iterator[Any]:
        """Run collectives that NCCL would run as one, for which fake tensors have no rule."""
        yield c10d._CoalescingManager()

    after_import("torch.distributed.pipelining.stage", _change_stages)
    from_rank_to_rank = list(_from_rank_to_rank(gpus))
    yield elastic_launch, "__call__", launched
    for module in (multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
        yield module, "start_processes", start_processes
    yield c10d, "rendezvous", rendezvous
    yield c10d, "_new_process_group_helper", group
    yield device_mesh, "init_process_group", opened
    for module in (dist, c10d):
        yield module, "init_process_group", opened
        yield module, "broadcast_object_list", _nothing
        yield module, "_coalescing_manager", one_by_one
        for name, stand_in in from_rank_to_rank:
            yield module, name, stand_in
        yield module, "monitored_barrier", _nothing
    yield c10d.ProcessGroup, "monitored_barrier", _nothing  # Lightning's
    yield from _replicas(gpus)
    yield from _shards(gpus)


def _nothing(*_: Any, **__: Any) -> None:
    return None


class _Sent:
    """Work of a send, which keeps what is sent as long as the program keeps it (``ProcessGroupNCCL``, ``outputs_``)."""

    def __init__(self, work: Any, tensor: Any) -> None:
        self._work, self._tensor = work, tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _from_rank_to_rank(gpus: FakeGpus) -> Iterator[tuple[str, Any]]:
    """Yield stand-ins for objects, and tensors, that one rank sends to others."""
    from torch.distributed import distributed_c10d as c10d

    def all_gather_object(object_list: list[Any] | None, obj: Any, *_: Any, **__: Any) -> None:
        if object_list is not None:
            object_list[:] = [obj] * len(object_list)

    def gather_object(obj: Any, object_gather_list: list[Any] | None = None, *_: Any, **__: Any) -> None:
        all_gather_object(object_gather_list, obj)

    def scatter_object_list(
        scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None = None, *_: Any, **__: Any
    ) -> None:
        scatter_object_output_list[0] = scatter_object_input_list[0] if scatter_object_input_list else None

    gather_tensors = c10d.all_gather

    def all_gather(tensor_list: list[Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
        work = gather_tensors(tensor_list, tensor, *args, **kwargs)
        with torch.no_grad():
            for each in tensor_list:
                if each.shape == tensor.shape:
                    each.copy_(tensor)  # others have as much as this rank: sizes and pickled objects are read
        return work

    gather_into = c10d.all_gather_into_tensor

    def all_gather_into_tensor(output_tensor: Any, input_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        work = gather_into(output_tensor, input_tensor, *args, **kwargs)
        known = getattr(input_tensor, "constant", None)
        if known is not None and isinstance(output_tensor, FakeTensor):  # sizes are read, as accelerate's for padding
            copies = output_tensor.numel() // max(1, known.numel())
            gpus.know(output_tensor, known.reshape(-1).repeat(copies).reshape(output_tensor.shape))
        return work

    sent: list[Any] = []
    send = c10d.isend

    def send_object_list(object_list: list[Any], *_: Any, **__: Any) -> None:
        sent[:] = object_list

    def recv_object_list(object_list: list[Any], *_: Any, **__: Any) -> int:
        sentence = f"{program_line()} receives from another rank what only that knows: what this one sent is assumed"
        gpus.doubts.add(sentence, "sizes")
        object_list[:] = sent or object_list
        return 0

    def isend(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        work = send(tensor, *args, **kwargs)
        return None if work is None else _Sent(work, tensor)

    yield "all_gather", all_gather
    yield "all_gather_into_tensor", all_gather_into_tensor
    yield "all_gather_object", all_gather_object
    yield "gather_object", gather_object
    yield "scatter_object_list", scatter_object_list
    yield "send_object_list", send_object_list
    yield "recv_object_list", recv_object_list
    yield "isend", isend


def _change_stages(module: ModuleType) -> None:
    """Let a stage of a pipeline know the gradients of its outputs, which the next rank tells it (torch 2.13)."""
    receive = getattr(module._PipelineStageBase, "_recv_meta", None) or getattr(
        module.PipelineStage, "_recv_meta", None
    )
    if receive is None:
        return

    def recv_meta(self: Any, src_stage: int) -> Any:
        if src_stage < self.stage_index:
            return receive(self, src_stage)
        return module._StageBackwardMeta(module._derive_grad_metas(self._stage_meta.outputs))

    module.PipelineStage._recv_meta = recv_meta


def _replicas(gpus: FakeGpus) -> Iterator[tuple[Any, str, Any]]:
    """Yield stand-ins for ``DistributedDataParallel``, which is torch's own otherwise."""
    from torch.distributed import _register_comm_hook
    from torch.nn.parallel import distributed as ddp

    replica = ddp.DistributedDataParallel
    yield ddp, "_verify_param_shape_across_processes", _nothing
    start_replica = replica._ddp_init_helper

    def init_replica(self: Any, *args: Any, **kwargs: Any) -> None:
        start_replica(self, *args, **kwargs)
        _register_comm_hook(self.reducer, None, _reduced)

    # C++ makes buckets when a replica is made, and again after the first step
    yield replica, "_ddp_init_helper", gpus.making_buckets(init_replica)
    yield replica, "_pre_forward", gpus.making_buckets(replica._pre_forward)
    sentence = "reduces gradients in its own way, which vramtop does not follow"
    yield replica, "register_comm_hook", lambda *_, **__: gpus.doubts.add(f"{program_line()} {sentence}")


class _Generators:
    """The states of all ranks' generators of random numbers, which DTensors ask for and nobody needs here."""

    distribute_region_enabled = False
    _manual_seed = _nothing

    def _distribute_region(self, *_: Any, **__: Any) -> Any:
        return contextlib.nullcontext()


def _gathered_states(gpus: FakeGpus) -> Iterator[tuple[Any, str, Any]]:
    """Yield what lets FSDP1 save an optimizer's state, of which other ranks hold parts that this one does not name."""
    from torch.distributed.fsdp import fully_sharded_data_parallel as fsdp1

    gather = fsdp1._optim_state_dict

    def optim_state_dict(*args: Any, **kwargs: Any) -> Any:
        try:
            return gather(*args, **kwargs)
        except RuntimeError as error:
            if "is not in the optimizer state" not in str(error):
                raise
            gpus.doubts.add(f"{program_line()} gathers states of the optimizer that other ranks hold: not counted")
            return {}

    yield fsdp1, "_optim_state_dict", optim_state_dict


def _shards(gpus: FakeGpus) -> Iterator[tuple[Any, str, Any]]:
    """Yield stand-ins for FSDP1, DTensors and FSDP2, which are torch's own otherwise."""
    yield from streams_of_fsdp1(gpus)
    yield from labels_of_fsdp1(gpus)
    yield from _gathered_states(gpus)
    try:
        from torch.distributed._functional_collectives import AsyncCollectiveTensor
        from torch.distributed.tensor import DTensor, _op_schema, _random, _sharding_prop
    except ImportError:  # before torch 2.6
        return
    if not hasattr(_op_schema, "_rebuild_tensor_from_dtensor_meta"):
        return

    def on_cpu(arg: Any) -> Any:
        """Return what tells the shape of a result, on the device that fake GPUs are for C++."""
        found = arg.tensor_meta
        return torch.empty_strided(found.shape, found.stride, dtype=found.dtype)

    propagator, name = _sharding_prop.ShardingPropagator, "_propagate_tensor_meta_non_cached"
    yield _op_schema, "_rebuild_tensor_from_dtensor_meta", on_cpu
    ask = gpus.unseen(getattr(propagator, name))
    yield propagator, name, lambda self, op_schema: ask(self, op_schema) if op_schema.op._schema.returns else None
    if hasattr(_sharding_prop, _STRIDED):
        yield _sharding_prop, _STRIDED, _where_strided(getattr(_sharding_prop, _STRIDED))
    yield _random, "_rng_tracker", _Generators()
    yield AsyncCollectiveTensor, "__new__", staticmethod(gpus.unseen(AsyncCollectiveTensor.__new__))
    for kind in (DTensor, AsyncCollectiveTensor):
        yield kind, "device", property(gpus.device_of)
        yield kind, "is_cuda", property(lambda self: self.device.type == "cuda")
        yield kind, "is_cpu", property(lambda self: self.device.type == "cpu")
    with contextlib.suppress(ImportError):  # torch has no ``fully_shard`` before 2.6
        yield from labels_of_fsdp2(gpus)


_STRIDED = "_propagate_use_strided_shard_flag"


def _where_strided(propagate: Any) -> Any:
    """Return torch's function, which is then called only for lists that have strided shards.

    For each tensor of a list it checks all of them: half of the time of a deep model's trace under FSDP2.
    """
    looked_at: list[Any] = [None, False]

    def propagate_where_strided(op_strategy: Any, op_schema: Any) -> None:
        if looked_at[0] is not op_schema:
            placements = (each for spec in op_schema.args_spec for each in spec.placements)
            looked_at[:] = op_schema, any(type(each).__name__ == "_StridedShard" for each in placements)
        if looked_at[1]:
            propagate(op_strategy, op_schema)

    return propagate_where_strided


def _reduced(_state: Any, bucket: Any) -> Any:
    """Return a bucket as it is: a reduction without peers has no result."""
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _environment_of_rank_0(ranks: int, machines: int) -> dict[str, str]:
    """Return the variables that torchrun gives rank 0."""
    return {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_RESTART_COUNT"), "0"),
        **dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), str(ranks * machines)),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_WORLD_SIZE": str(machines),
        "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": os.environ.get("MASTER_PORT", "29500"),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "ROLE_NAME": "default",
    }
