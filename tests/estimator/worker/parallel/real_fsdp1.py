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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
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
        storages = [tensor.untyped_storage()._cdata for tensor in tensors if isinstance(tensor, torch.Tensor)]
        before = [torch._C._storage_Use_Count(storage) for storage in storages]
        result = collective(*tensors, **others)
        while any(torch._C._storage_Use_Count(storage) > uses for storage, uses in zip(storages, before, strict=True)):
            os.sched_yield()
        return result

    return run


class ResizingCounter(StorageCounter):
    """Also counts storages that FSDP empties and fills in place."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[int, int] = {}

    def count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._sizes and storage.nbytes():
            self._sizes[storage._cdata] = 0
            self._change(storage._cdata, storage.nbytes())
            weakref.finalize(storage, self._gone, storage._cdata)

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
        blocks = -(-size // 512) * 512
        self.live += blocks - self._sizes[key]
        self._sizes[key] = blocks
        self.peak = max(self.peak, self.live)

    def _gone(self, key: int) -> None:
        self._change(key, 0)
        del self._sizes[key]


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
        sharding_strategy=ShardingStrategy[case.get("strategy", "FULL_SHARD")],
        auto_wrap_policy=policy,
        mixed_precision=mixed or None,
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    if case.get("checkpoint"):
        for module in wrapped.modules():
            if isinstance(module, FullyShardedDataParallel) and type(module.module).__name__ in case["classes"]:
                reentrant = case["checkpoint"] != "not reentrant"
                module.forward = checkpointed(module.forward, reentrant=reentrant)  # type: ignore[method-assign]
    return wrapped


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
    with counter, counter.resizes():
        for tensor in (*model.parameters(), *model.buffers()):
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
            optimizer.step()
            peaks["optimizer step"] = counter.peak
            model.zero_grad()
    if rank == 0:
        sys.stdout.write(json.dumps(peaks) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    arguments = json.loads(sys.argv[1])
    torch.multiprocessing.spawn(run, (arguments, number), nprocs=ranks(arguments))
