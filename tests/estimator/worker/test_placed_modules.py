"""Device maps in the trace, compared with accelerate's own hooks on fake tensors of several GPUs."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import hooks
from storage_counter import StorageCounter
from torch.utils._pytree import tree_map_only
from transformers import AutoConfig, AutoModelForCausalLM

AskWorker = Callable[[dict[str, Any]], dict[str, Any]]
BATCH, LENGTH = 2, 64
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
LAYERS = {f"model.layers.{number}": 1 for number in range(4)}
HALVES = {"model.embed_tokens": 0, **LAYERS, "model.layers.0": 0, "model.norm": 1, "model.rotary_emb": 0}
TABLES: dict[str, dict[str, int]] = {
    "the last GPU has the head": {**HALVES, "lm_head": 1},
    "the head is on the first GPU": {**HALVES, "lm_head": 0},
    "most blocks are on the first GPU": {**dict.fromkeys((*HALVES, "lm_head"), 0), "model.layers.3": 1},
}


class GpuCounter(StorageCounter):
    """Counts the peak of each GPU: what a module with accelerate's hook allocates is on the GPU of that hook."""

    def __init__(self) -> None:
        super().__init__()
        self.gpus: dict[int, int] = {}
        self.running = [0]
        self.levels = [0, 0]
        self.peaks = [0, 0]
        self.hosted: dict[Any, Any] = {}
        """Parameters in host memory of modules that run."""

    def count(self, tensor: torch.Tensor) -> None:
        storage, gpu = tensor.untyped_storage(), self.running[-1]
        if storage._cdata in self.gpus or not storage.nbytes():
            return
        size = -(-storage.nbytes() // 512) * 512
        self.gpus[storage._cdata] = gpu
        self.levels[gpu] += size
        self.peaks[gpu] = max(self.peaks[gpu], self.levels[gpu])
        weakref.finalize(storage, self._drop, storage._cdata, size)

    def _drop(self, key: int, size: int) -> None:
        self.levels[self.gpus.pop(key)] -= size

    def send(self, tree: Any, gpu: int, **_unused: Any) -> Any:
        """Copy the tensors that are on another GPU, as ``send_to_device``."""
        return tree_map_only(torch.Tensor, lambda tensor: self._copied(tensor, gpu), tree)

    def _copied(self, tensor: torch.Tensor, gpu: int) -> torch.Tensor:
        if self.gpus.get(tensor.untyped_storage()._cdata, gpu) == gpu:
            return tensor
        self.running.append(gpu)
        copy = tensor.clone()
        self.running.pop()
        return copy

    def with_logits(self, loss: Any) -> Any:
        """Return a loss that is computed where the logits are."""

        def run(logits: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.running.append(self.gpus[logits.untyped_storage()._cdata])
            result = loss(logits, *args, **kwargs)
            self.running.pop()
            return result

        return run

    def place(self, module: torch.nn.Module, path: str, gpu: int | str, value: Any = None, **_unused: Any) -> None:
        """Count a parameter or buffer on a GPU, as ``set_module_tensor_to_device`` moves it there.

        An offloaded one is copied, and taken away again ("meta"), which leaves what is in host memory.
        """
        owner, _, name = path.rpartition(".")
        holder = module.get_submodule(owner)
        if gpu == "meta":
            holder._parameters[name] = self.hosted.pop((holder, name), holder._parameters[name])
            return
        assert isinstance(gpu, int)
        self.running.append(gpu)
        if value is None:
            self.count(getattr(holder, name))
        else:
            self.hosted[holder, name] = holder._parameters[name]
            holder._parameters[name] = torch.nn.Parameter(value.clone(), requires_grad=False)
        self.running.pop()


class RunningHook(hooks.AlignDevicesHook):
    """accelerate's hook, which also says on which GPU a module runs."""

    counter: GpuCounter

    def pre_forward(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = super().pre_forward(module, *args, **kwargs)
        self.counter.running.append(self.execution_device)
        return result

    def post_forward(self, module: torch.nn.Module, output: Any) -> Any:
        self.counter.running.pop()
        return super().post_forward(module, output)


def forward_peaks(table: dict[str, Any], *, trains: bool = True) -> list[int]:
    """Return the peak of each GPU in a real forward pass that accelerate's hooks spread: of a training step, or not."""
    fields = dict(LLAMA)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields, attn_implementation="eager", use_cache=not trains)
    counter = RunningHook.counter = GpuCounter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hooks, "set_module_tensor_to_device", counter.place)
        patch.setattr(hooks, "send_to_device", counter.send)
        patch.setattr(hooks, "find_device", lambda _inputs: 0)
        patch.setattr(hooks, "AlignDevicesHook", RunningHook)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train(trains)
        model.loss_function = counter.with_logits(model.loss_function)
        gpus = {name: 0 if device == "cpu" else device for name, device in table.items()} | {"": 0}
        offload = {name: device == "cpu" for name, device in table.items()}
        hooks.attach_align_device_hook_on_blocks(model, execution_device=gpus, offload=offload)
        with counter, torch.set_grad_enabled(trains):
            ids = torch.randint(0, 100, (BATCH, LENGTH))
            counter.count(ids)
            outputs = model(input_ids=ids, labels=ids.clone()) if trains else model(input_ids=ids)
        assert counter.gpus[outputs.logits.untyped_storage()._cdata] == 0
    return counter.peaks


@pytest.fixture
def trace(ask_worker: AskWorker) -> Callable[..., dict[str, Any]]:
    """Return the answer for settings of the training and a device map."""

    def ask(table: dict[str, Any] | None, **training: Any) -> dict[str, Any]:
        return ask_worker(
            {
                "op": "trace",
                "config": LLAMA,
                "attention": "eager",
                "cpu_kernels": True,
                "training": {"micro_batch": BATCH, "sequence_length": LENGTH, "precision": "bf16", **training},
                "parallel": {"pipeline": 2, "device_map": table} if table else {},
            }
        )

    return ask


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if "last" in name else pytest.mark.slow) for name in TABLES]
)
def test_each_gpu_holds_what_accelerates_hooks_put_there(trace: Callable[..., dict[str, Any]], name: str) -> None:
    peaks = forward_peaks(TABLES[name])
    answer = trace(TABLES[name], optimizer="sgd")
    assert answer["gpu"] == peaks.index(max(peaks))
    assert answer["phases"]["forward"]["allocated"] == pytest.approx(max(peaks), abs=8 * 512)


@pytest.mark.slow
@pytest.mark.parametrize("device", [0, "0", "cuda:0", "cuda"])
def test_one_gpu_is_as_without_a_map(trace: Callable[..., dict[str, Any]], device: int | str) -> None:
    answer, plain = trace({"": device}), trace(None)
    assert answer["gpu"] == 0
    assert answer["phases"] == plain["phases"]
    assert answer["reserved"] == plain["reserved"]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"activation_checkpointing": "full"}], ids=["plain", "checkpointed"])
def test_gradients_and_states_are_where_their_weights_are(
    trace: Callable[..., dict[str, Any]], settings: dict[str, str]
) -> None:
    """Elements of the last three blocks, norm and head; AdamW has two states, and a step of as many elements."""
    block = 2 * 128 * 128 + 2 * 128 * 32 + 3 * 128 * 352 + 2 * 128
    held = 3 * block + 128 + 128 * 1000
    answer = trace({**HALVES, "lm_head": 1}, **settings)
    components = answer["phases"]["optimizer step"]["components"]
    assert answer["gpu"] == 1
    assert components["weights"] == pytest.approx(2 * held, abs=64 * 512)
    assert components["gradients"] == pytest.approx(2 * held, abs=64 * 512)
    assert components["optimizer"] == pytest.approx(4 * held, abs=128 * 512)
    assert answer["phases"]["backward"]["allocated"] < trace(None, **settings)["phases"]["backward"]["allocated"]


@pytest.mark.parametrize("name", ["blocks", pytest.param("head", marks=pytest.mark.slow)])
def test_offloaded_modules_pass_through_the_first_gpu(trace: Callable[..., dict[str, Any]], name: str) -> None:
    """accelerate copies what a module has of its own to the GPU before it runs, and drops the copies after it."""
    tables: dict[str, dict[str, Any]] = {
        "blocks": {**dict.fromkeys((*HALVES, "lm_head"), 0), "model.layers.2": "cpu", "model.layers.3": "cpu"},
        "head": {**HALVES, "lm_head": "cpu", "model.norm": "cpu", "model.layers.1": 0},
    }
    peaks = forward_peaks(tables[name], trains=False)
    answer = trace(tables[name], mode="inference", optimizer="none")
    assert answer["gpu"] == peaks.index(max(peaks))
    assert answer["phases"]["forward"]["allocated"] == pytest.approx(max(peaks), abs=8 * 512)
    if name == "blocks":
        assert (
            answer["phases"]["loading"]["components"]["weights"]
            < trace(None, mode="inference", optimizer="none")["phases"]["loading"]["components"]["weights"]
        )


def test_what_no_gpu_holds_is_not_trained(trace: Callable[..., dict[str, Any]]) -> None:
    table: dict[str, Any] = {**HALVES, "lm_head": "cpu"}
    assert "CPU RAM" in trace(table)["unsupported"]
    assert "all modules" in trace(dict.fromkeys(table, "cpu"), mode="inference", optimizer="none")["unsupported"]
