"""Two real training steps under FSDP1 on CPU ranks (gloo), with their live bytes counted by ``StorageCounter``.

``python real_fsdp1.py JSON`` prints the peaks of the second step on rank 0 as JSON. The arguments of
``FullyShardedDataParallel`` are written out here, not taken from the product.
"""

import contextlib
import functools
import json
import os
import socket
import sys
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp._flat_param import FlatParamHandle
from torch.distributed.fsdp.wrap import (
    _or_policy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parents[3]))
from storage_counter import StorageCounter

SHARDS, BATCH, LENGTH = 2, 2, 64
LOW = {"bf16-mixed": torch.bfloat16}


def settled(collective: Any) -> Any:
    """Return a collective that also waits until gloo's thread has let go of its tensors.

    ``ProcessGroupGloo::runLoop`` wakes the waiting thread before it resets ``workInProgress_``, which holds them.
    """

    def run(*tensors: torch.Tensor, **others: Any) -> Any:
        before = references(tensors)
        result = collective(*tensors, **others)
        while any(now > then for now, then in zip(references(tensors), before, strict=True)):
            os.sched_yield()
        return result

    return run


def references(tensors: Iterable[Any]) -> list[int]:
    """Return the references to each tensor and to its storage."""
    counts = []
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            counts += [tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)]
    return counts


class ResizingCounter(StorageCounter):
    """Also counts storages that FSDP empties and fills in place, and leaves out those in host memory."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[int, int] = {}
        self._host: set[int] = set()
        self.on_host = False
        """What is allocated now is host memory."""

    def count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._sizes and storage.nbytes():
            self._sizes[storage._cdata] = 0
            if self.on_host:
                self._host.add(storage._cdata)
            self._change(storage._cdata, storage.nbytes())
            weakref.finalize(storage, self._gone, storage._cdata)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a storage no longer: it is host memory."""
        self.count(tensor)
        self._change(tensor.untyped_storage()._cdata, 0)
        self._host.add(tensor.untyped_storage()._cdata)
        return tensor

    @contextlib.contextmanager
    def resizes(self) -> Iterator[None]:
        original = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:
            result = original(storage, size)
            if storage._cdata not in self._sizes:
                self._sizes[storage._cdata] = 0
                weakref.finalize(storage, self._gone, storage._cdata)
            self._change(storage._cdata, size)
            return result

        torch.UntypedStorage.resize_ = resize
        yield
        torch.UntypedStorage.resize_ = original

    def _change(self, key: int, size: int) -> None:
        blocks = 0 if key in self._host else -(-size // 512) * 512
        self.live += blocks - self._sizes[key]
        self._sizes[key] = blocks
        self.peak = max(self.peak, self.live)

    def _gone(self, key: int) -> None:
        self._change(key, 0)
        del self._sizes[key]
        self._host.discard(key)


def wrap(model: nn.Module, case: dict[str, Any]) -> FullyShardedDataParallel:
    kinds = {type(module) for module in model.modules() if type(module).__name__ in case["classes"]}
    policy: Any = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=kinds)
    if case.get("size"):
        policy = functools.partial(size_based_auto_wrap_policy, min_num_params=case["size"])
    elif not kinds:
        policy = None
    elif case.get("lora"):  # a unit of each trained leaf, as peft's policy makes them
        leaf = functools.partial(
            lambda_auto_wrap_policy,
            lambda_fn=lambda module: (
                not list(module.children())
                and getattr(module, "weight", None) is not None
                and module.weight.requires_grad
            ),
        )
        policy = functools.partial(_or_policy, policies=[leaf, policy])
    mesh = case.get("replicas") and init_device_mesh("cpu", (case["replicas"], SHARDS), mesh_dim_names=("copy", "part"))
    low = LOW.get(case["precision"])
    mixed = low and MixedPrecision(param_dtype=low, reduce_dtype=low, buffer_dtype=low)
    wrapped = FullyShardedDataParallel(
        model,
        device_mesh=mesh or None,
        cpu_offload=CPUOffload(offload_params=bool(case.get("offload"))),
        sharding_strategy=ShardingStrategy[case.get("strategy", "FULL_SHARD")],
        auto_wrap_policy=policy,
        mixed_precision=mixed or None,
        device_id=torch.device("cpu"),
        use_orig_params=case.get("original", True),
    )
    if case.get("checkpoint"):
        for module in wrapped.modules():
            if isinstance(module, FullyShardedDataParallel) and type(module.module).__name__ in case["classes"]:
                reentrant = case["checkpoint"] != "not reentrant"
                module.forward = checkpointed(module.forward, reentrant=reentrant)  # type: ignore[method-assign]
    return wrapped


def offload(model: FullyShardedDataParallel, counter: ResizingCounter) -> None:
    """Let FSDP1 compute on a device other than the one that it offloads to.

    ``cpu:0`` differs from ``cpu``: a tensor is copied there and has the device ``cpu`` again. So what has been copied
    must not be copied again.
    """
    move = FlatParamHandle.flat_param_to

    def move_once(handle: Any, *arguments: Any, **others: Any) -> None:
        flat = handle.flat_param
        if flat.untyped_storage()._cdata == flat._local_shard.untyped_storage()._cdata:
            move(handle, *arguments, **others)

    FlatParamHandle.flat_param_to = move_once  # type: ignore[method-assign]
    write_back = FlatParamHandle._writeback_orig_params

    def write_back_on_host(handle: Any) -> Any:
        counter.on_host = True  # a new gradient is on the device of the flat parameter, which is the host
        result = write_back(handle)
        counter.on_host = False
        return result

    FlatParamHandle._writeback_orig_params = write_back_on_host  # type: ignore[method-assign]
    for unit in FullyShardedDataParallel.fsdp_modules(model):
        if unit._handle is not None:
            unit._handle.device = torch.device("cpu", 0)
    for check in ("_check_on_compute_device", "_check_low_precision_shard"):
        setattr(FlatParamHandle, check, lambda *_unused: None)
    torch.cpu.Stream.synchronize = lambda _self: None  # a GPU's stream has it
    torch.Tensor.pin_memory = lambda tensor, *_unused: counter.pin(tensor)  # type: ignore[method-assign, assignment]


def checkpointed(forward: Any, *, reentrant: bool) -> Any:
    """Return a unit's forward pass as transformers before 4.52 calls it."""

    def run(hidden: Any, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(functools.partial(forward, **kwargs), hidden, *args, use_reentrant=reentrant)

    return run


def build(case: dict[str, Any]) -> nn.Module:
    fields = dict(case["config"])
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    config.use_cache = False
    dtype = torch.bfloat16 if case["precision"] == "bf16" else torch.float32
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    if case.get("lora"):
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(**case["lora"]))
        if case.get("checkpoint"):
            model.enable_input_require_grads()
    model.train()
    return model


def ranks(case: dict[str, Any]) -> int:
    """Return the number of ranks: shards times copies."""
    return SHARDS * int(case.get("replicas", 1))


def run(rank: int, case: dict[str, Any], port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks(case))
    for name in {"all_gather_single", "reduce_scatter_single", "all_reduce"} & set(dir(dist)):
        setattr(dist, name, settled(getattr(dist, name)))
    torch.set_num_threads(1)
    model = wrap(build(case), case)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], foreach=True)
    low, peaks = LOW.get(case["precision"]), {}
    counter = ResizingCounter()
    if case.get("offload"):
        offload(model, counter)
    with counter, counter.resizes():
        counter.on_host = bool(case.get("offload"))
        for tensor in model.parameters():
            counter.count(tensor)
        counter.on_host = False
        for tensor in model.buffers():
            counter.count(tensor)
        for _ in range(2):
            counter.reset_peak()
            ids, labels = (torch.randint(0, 100, (BATCH, LENGTH)) for _ in range(2))
            with torch.autocast("cpu", dtype=low) if low else contextlib.nullcontext():
                outputs = model(input_ids=ids, labels=labels)
            loss = outputs["loss"]
            del outputs, ids, labels
            peaks["forward"] = counter.peak
            counter.reset_peak()
            loss.backward()
            del loss
            peaks["backward"] = counter.peak
            counter.reset_peak()
            counter.on_host = bool(case.get("offload"))
            optimizer.step()
            peaks["optimizer step"] = counter.peak
            model.zero_grad()
            counter.on_host = False
    if rank == 0:
        sys.stdout.write(json.dumps(peaks) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    arguments = json.loads(sys.argv[1])
    torch.multiprocessing.spawn(run, (arguments, number), nprocs=ranks(arguments))
