"""Hand-made memory snapshots in the schema that ``_snapshot()`` in torch's ``cuda/memory.py`` documents."""

# ruff: noqa: E501 - paths of files

from typing import Any

MIB = 2**20
HF = "/env/lib/python3.11/site-packages/"
CALL = (HF + "torch/nn/modules/module.py", 1775, "_call_impl")
LINEAR = (HF + "torch/nn/modules/linear.py", 125, "forward")
MODEL = (HF + "transformers/models/llama/modeling_llama.py", 480, "forward")
LAYER = (HF + "transformers/models/llama/modeling_llama.py", 310, "forward")
MLP = (HF + "transformers/models/llama/modeling_llama.py", 155, "forward")
STEP = ("/home/u/train.py", 41, "train")
LOAD = [
    (HF + "torch/nn/modules/module.py", 1340, "convert"),
    (HF + "torch/nn/modules/module.py", 930, "_apply"),
    (HF + "torch/nn/modules/module.py", 1355, "to"),
    STEP,
]
FORWARD = [LINEAR, CALL, MLP, CALL, LAYER, CALL, MODEL, CALL, STEP]
HEAD = [LINEAR, CALL, MODEL, CALL, STEP]
LOSS = [
    (HF + "torch/nn/functional.py", 3460, "cross_entropy"),
    (HF + "transformers/loss/loss_utils.py", 36, "fixed_cross_entropy"),
    MODEL,
    CALL,
    STEP,
]
STATE = [(HF + "torch/optim/adamw.py", 150, "_init_group"), (HF + "torch/optim/optimizer.py", 493, "wrapper"), STEP]
OPTIMIZER = [(HF + "torch/optim/adam.py", 640, "_multi_tensor_adam"), *STATE[1:]]
RECOMPUTE = [LINEAR, CALL, MLP, CALL, (HF + "torch/utils/checkpoint.py", 1100, "unpack_hook")]
GATHER = [(HF + "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 190, "foreach_all_gather"), *FORWARD]
AUTOGRAD: list[tuple[str, int, str]] = []


def frames(stack: list[tuple[str, int, str]]) -> list[dict[str, Any]]:
    return [{"filename": file, "line": line, "name": name} for file, line, name in stack]


class Recorder:
    """Writes a snapshot and its history as torch's allocator would, each allocation in a segment of its own."""

    def __init__(self) -> None:
        self.trace: list[dict[str, Any]] = []
        self.live: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        self.next = 0x7F00_0000_0000

    def alloc(self, mib: float, stack: list[tuple[str, int, str]]) -> int:
        size, address, recorded = int(mib * MIB), self.next, frames(stack)
        self.next += size
        self.live[address] = (size, recorded)
        for action in ("segment_alloc", "alloc"):
            self.trace.append({"action": action, "addr": address, "size": size, "stream": 0, "frames": recorded})
        return address

    def free(self, address: int) -> None:
        size, recorded = self.live.pop(address)
        for action in ("free_requested", "free_completed", "segment_free"):
            self.trace.append({"action": action, "addr": address, "size": size, "stream": 0, "frames": recorded})

    def oom(self, mib: float, stack: list[tuple[str, int, str]], free_mib: float = 0.0) -> None:
        self.trace.append(
            {"action": "oom", "size": int(mib * MIB), "device_free": int(free_mib * MIB), "stream": 0, "frames": frames(stack)}
        )  # fmt: skip

    def snapshot(self, *free_mib: float, **more: Any) -> dict[str, Any]:
        """The state now; ``free_mib``: free blocks in a segment that is partly held."""
        segments = [
            _segment(address, [(size, "active_allocated", kept)]) for address, (size, kept) in self.live.items()
        ]
        if free_mib:
            segments.append(_segment(1 << 40, [(int(mib * MIB), "inactive", []) for mib in free_mib]))
        return {"segments": segments, "device_traces": [self.trace], **more}


def _segment(address: int, blocks: list[tuple[int, str, list[dict[str, Any]]]]) -> dict[str, Any]:
    made, at = [], address
    for size, state, kept in blocks:
        made.append({"address": at, "size": size, "requested_size": size, "state": state, "frames": kept})
        at += size
    total = at - address
    active = sum(block["size"] for block in made if block["state"] != "inactive")
    return {
        "device": 0,
        "address": address,
        "total_size": total,
        "allocated_size": active,
        "active_size": active,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": made,
    }


def training_crash() -> dict[str, Any]:
    """Two steps of training; the second runs out of memory in the loss."""
    run = Recorder()
    for _ in range(4):
        run.alloc(100, LOAD)
    grads: list[int] = []
    for step in range(2):
        saved = [run.alloc(60, FORWARD) for _ in range(4)]
        logits = run.alloc(250, HEAD)
        if step:
            run.oom(500, LOSS, free_mib=120)
            break
        loss = run.alloc(500, LOSS)
        run.free(loss)
        for address in saved:
            run.free(run.alloc(30, AUTOGRAD))
            grads.append(run.alloc(100, AUTOGRAD))
            run.free(address)
        run.free(logits)
        for _ in range(4):
            run.alloc(200, STATE)
        run.free(run.alloc(100, OPTIMIZER))
    return run.snapshot(40, 16, vramtop={"total_bytes": {"0": 2400 * MIB}})
