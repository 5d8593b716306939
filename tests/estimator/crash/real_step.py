"""Runs real training steps on the CPU, and writes what lives then as a memory snapshot with the real stacks.

A dispatch mode sees every tensor that an operation allocates, with the Python stack at that place. On a GPU the
backward pass runs on autograd's own thread, whose stack begins there: frames outside of it are cut off. What the
tensors are is known by identity: parameters, their gradients, the optimizer's states, what autograd has saved.
"""

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM

SKIPPED = ("torch/utils/_python_dispatch.py", "torch/_dynamo/eval_frame.py", "torch/_compile.py", __file__)
"""Frames of the dispatch mode, which no allocator would see."""


def stack() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_engine_run_backward":
            break
        if not code.co_filename.endswith(SKIPPED) or code.co_name in ("train", "main"):
            found.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back  # type: ignore[assignment]
    return found


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, tuple[StorageWeakRef, int, list[dict[str, Any]]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                old = self.known.get(storage._cdata)
                if old is None or old[0].expired():
                    self.known[storage._cdata] = (StorageWeakRef(storage), storage.nbytes(), stack())
        return result

    def snapshot(self) -> dict[str, Any]:
        blocks, trace, address = [], [], 4096
        for reference, size, frames in self.known.values():
            if not reference.expired() and size:
                block = {"address": address, "size": size, "requested_size": size, "state": "active_allocated"}
                blocks.append({**block, "frames": frames})
                trace.append({"action": "alloc", "addr": address, "size": size, "stream": 0, "frames": frames})
                address += size
        segment = {"device": 0, "address": 4096, "total_size": address - 4096, "blocks": blocks}
        return {"segments": [segment], "device_traces": [trace]}


def bytes_of(tensors: Any) -> int:
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def train(checkpointing: bool, folder: str) -> dict[str, dict[str, int]]:
    config = LlamaConfig(
        vocab_size=320, hidden_size=64, intermediate_size=176, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    recorder, truth = Recorder(), {}

    def keep(name: str, saved: list[torch.Tensor]) -> None:
        parameters = list(model.parameters())
        own = {each.untyped_storage()._cdata for each in parameters}
        states = [each for state in optimizer.state.values() for each in state.values()]
        truth[name] = {
            "weights": bytes_of([*parameters, *model.buffers()]),
            "gradients": bytes_of(each.grad for each in parameters if each.grad is not None),
            "optimizer": bytes_of(states),
            "saved": bytes_of(each for each in saved if each.untyped_storage()._cdata not in own),
        }
        Path(folder, f"{name}.pickle").write_bytes(pickle.dumps(recorder.snapshot()))

    with recorder:
        model = LlamaForCausalLM(config).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for step in range(2):
            batch = torch.randint(0, 320, (2, 48))
            saved: list[torch.Tensor] = []

            def pack(tensor: torch.Tensor, into: list[torch.Tensor] = saved) -> torch.Tensor:
                into.append(tensor)
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = model(input_ids=batch, labels=batch).loss
            if step:
                keep("forward", saved)
            saved.clear()
            loss.backward()
            if step:
                keep("backward", [])
            optimizer.step()
            optimizer.zero_grad()
    return truth


if __name__ == "__main__":
    sys.stdout.write(json.dumps(train(sys.argv[1] == "checkpointing", sys.argv[2])))
