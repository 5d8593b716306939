"""Allocations of two training steps under megatron-fsdp itself, on fake tensors.

``python real_megatron_fsdp.py`` prints those of all cases under the installed version as JSON, from which
``real_megatron_fsdp.json`` is made. The package's streams, events and collectives are CUDA's and NCCL's; stand-ins that
allocate nothing take their place, and a tensor takes that of the DTensor over it. The rest is the package's own.
"""

import contextlib
import functools
import json
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from vramtop.estimator.worker.memory.tracker import AllocationHistory, StorageTracker

RANKS, LENGTH, SMALLEST = 8, 16, 8192
BF16, FP32 = "bfloat16", "float32"
CASES: dict[str, dict[str, Any]] = {
    "blocks": {},
    "small unit": {"unit": 100_000, "layers": 5},
    "tied, main weights": {"tied": True, "main": True},
    "fp32 gradients": {"main": True, "gradients": FP32, "reduced": FP32, "micro_batches": 2},
    "gradients reduced in fp32": {"reduced": FP32},
    "checkpointed": {"unit": 100_000, "layers": 5, "checkpointed": True},
    "frozen": {"frozen": True, "layers": 4, "checkpointed": True},
    "odd sizes": {"hidden": 96, "wide": 176, "vocabulary": 515},
    "gradients sharded": {"stage": 2, "unit": 100_000, "layers": 5, "main": True},
    "optimizer sharded": {"stage": 1, "main": True, "gradients": FP32},
    "nothing sharded": {"stage": 0},
    "double buffers": {"double": True, "unit": 100_000, "layers": 5},
    "double buffers, checkpointed": {
        "double": True,
        "main": True,
        "gradients": FP32,
        "layers": 4,
        "checkpointed": True,
    },
    "double buffers, gradients sharded": {"double": True, "stage": 2, "layers": 4},
    "fp32 adapters": {"adapters": True, "gradients": None, "reduced": None},
}


class Adapter(torch.nn.Module):
    """A frozen linear layer with a trained product of two fp32 matrices beside it."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.first = torch.nn.Linear(layer.in_features, 64, bias=False, dtype=torch.float32)
        self.second = torch.nn.Linear(64, layer.out_features, bias=False, dtype=torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.second(self.first(x.float())).to(x.dtype)


def dtype_of(case: dict[str, Any], name: str) -> torch.dtype | None:
    """Return a dtype of a case; None: the package's default."""
    found = case.get(name, BF16)
    return None if found is None else getattr(torch, found)


def model_of(case: dict[str, Any]) -> Any:
    """Return the model of a case, in bf16."""
    hidden, layers = case.get("hidden", 64), case.get("layers", 3)
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=case.get("wide", 128),
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=case.get("vocabulary", 512),
        tie_word_embeddings=case.get("tied", False),
        dtype=torch.bfloat16,
    )
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = transformers.LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    if case.get("adapters"):
        model.requires_grad_(requires_grad=False)
        for layer in model.model.layers:
            layer.self_attn.q_proj = Adapter(layer.self_attn.q_proj)
            layer.mlp.down_proj = Adapter(layer.mlp.down_proj)
    if case.get("frozen"):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("layers.1" in name or "norm" in name)
        model.enable_input_require_grads()
    if case.get("checkpointed"):
        model.train()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def two_steps(model: Any, case: dict[str, Any], tracker: StorageTracker, scale: Any, step: Callable[[], None]) -> None:
    """Take two steps.

    Args:
        model: of the case.
        case: the case.
        tracker: of its storages.
        scale: takes and returns the loss before its backward pass.
        step: takes the optimizer's step, and zeroes gradients.
    """
    for number in (1, 2):
        for _ in range(case.get("micro_batches", 1)):
            tracker.begin_phase(number, "forward")
            ids = torch.zeros(1, LENGTH, dtype=torch.long)
            loss = scale(model(input_ids=ids, labels=ids, use_cache=False).loss)
            tracker.begin_phase(number, "backward")
            loss.backward()
            del loss
        tracker.begin_phase(number, "optimizer step")
        step()
    tracker.begin_phase(3, "end")


def allocations(history: AllocationHistory) -> list[str]:
    """Return what is live before training, and every allocation and release of the two steps."""
    start, end = (next(p.start for p in history.phases if p.name == name) for name in ("forward", "end"))
    live: set[int] = set()
    for event in history.events[:start]:
        (live.add if event > 0 else live.discard)(abs(event) - 1)
    found = [str(size) for size in sorted(history.records[number].nbytes for number in live) if size >= SMALLEST]
    phases = {p.start: p.name for p in history.phases if p.start >= start}
    for at in range(start, end):
        found += [phases[at].replace(" ", "-")] if at in phases else []
        record = history.records[abs(history.events[at]) - 1]
        if record.nbytes >= SMALLEST:
            found.append(f"{'+' if history.events[at] > 0 else '-'}{record.nbytes}@{record.stream}")
    return found


class MemoryBuffer:
    """The package's ``GlobalMemoryBuffer``, on the CPU."""

    def __init__(self) -> None:
        self._buffers: dict[Any, Any] = {}

    def get_tensor(self, shape: list[int], dtype: torch.dtype, name: str, **_others: Any) -> Any:
        """Return a tensor that stays, by its name."""
        if (name, dtype) not in self._buffers:
            self._buffers[name, dtype] = torch.empty(shape, dtype=dtype)
        return self._buffers[name, dtype]


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Put stand-ins in place of CUDA's streams and events, of collectives, and of DTensors."""
    from megatron_fsdp import param_and_grad_buffer as module

    event = SimpleNamespace(wait=lambda: None)
    stream, buffers = torch.cpu.Stream, module.ParamAndGradBuffer
    update, zero = buffers.update_main_grads, buffers.zero_grad

    def local(local_tensor: Any, param: Any, **_others: Any) -> Any:
        return local_tensor.view(-1, *param.shape[1:])

    def forgetting(method: Any) -> Any:
        def run(self: Any) -> None:
            self.dist_main_grad.clear()  # else it would set the local tensor of a DTensor that exists
            method(self)

        return run

    patches = {
        torch.cuda: {
            "current_device": lambda: 0,
            "Stream": stream,
            "stream": torch.cpu.stream,
            "current_stream": torch.cpu.current_stream,
            "empty_cache": lambda: None,
        },
        stream: {"wait_stream": lambda *_: None, "record_event": lambda *_: event},
        dist: dict.fromkeys(("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"), lambda *_, **__: event),
        module: {
            "_coalescing_manager": lambda *_, **__: contextlib.nullcontext(event),
            "make_fsdp_dtensor": local,
            "get_global_memory_buffer": functools.cache(MemoryBuffer),
        },
        buffers: {"update_main_grads": forgetting(update), "zero_grad": forgetting(zero)},
    }
    with contextlib.ExitStack() as stack:
        for owner, changes in patches.items():
            for name, replacement in changes.items():
                if hasattr(owner, name):
                    stack.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, replacement)
        yield


def dtypes(case: dict[str, Any]) -> dict[str, Any]:
    """Return what says the dtypes of a case: a policy since 0.4."""
    import megatron_fsdp

    policy = getattr(megatron_fsdp, "MixedPrecisionPolicy", None)
    if policy is None:
        return {"preserve_fp32_weights": case.get("main", False), "grad_reduce_in_fp32": case.get("gradients") == FP32}
    chosen = policy(
        main_params_dtype=torch.float32 if case.get("main") else None,
        main_grads_dtype=dtype_of(case, "gradients"),
        grad_comm_dtype=dtype_of(case, "reduced"),
    )
    return {"mixed_precision_policy": chosen}


def real_allocations(case: dict[str, Any]) -> list[str]:
    """Return the allocations of a case under the installed megatron-fsdp."""
    from megatron_fsdp.fully_shard import fully_shard_model, fully_shard_optimizer

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("shard", "tensor"))
        with stand_ins(), FakeTensorMode(allow_non_fake_inputs=True):
            model, tracker = model_of(case), StorageTracker()
            model.to = lambda *_: model  # fake tensors do not move
            with tracker, tracker.tracking_resize():
                tracker.begin_phase(0, "loading")
                wrapped = fully_shard_model(
                    model,
                    device_mesh=mesh,
                    dp_shard_dim="shard",
                    tp_dim="tensor",
                    fsdp_unit_modules=[LlamaDecoderLayer],
                    zero_dp_strategy=case.get("stage", 3),
                    device=torch.device("cpu"),
                    preproc_state_dict_for_dcp_ckpt=False,
                    fsdp_double_buffer=case.get("double", False),
                    **dtypes(case),
                )
                if "unit" in case:
                    wrapped.suggested_RS_queue_capacity = case["unit"]
                    wrapped.suggested_AG_prefetch_size = case["unit"] // 2
                trained = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
                optimizer = fully_shard_optimizer(
                    torch.optim.AdamW(trained, foreach=True), preproc_state_dict_for_dcp_ckpt=False
                )

                def step() -> None:
                    optimizer.step()
                    optimizer.zero_grad()

                two_steps(wrapped, case, tracker, lambda loss: loss, step)
            return allocations(tracker.history)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    json.dump({name: " ".join(real_allocations(case)) for name, case in CASES.items()}, sys.stdout, indent=1)
