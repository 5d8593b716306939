"""The real run of a program on the CPU, with all tensors counted: what its rehearsal for a GPU is compared with."""

import os
import socket
import subprocess
import sys
from pathlib import Path

REAL = """
import runpy, sys, torch, weakref
import torch.distributed as dist
from torch.optim import optimizer, swa_utils
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from vramtop.estimator.worker.memory.convolutions import BACKWARD, FORWARD, Convolutions
from vramtop.estimator.worker.memory.tracker import is_by_engine, parts_of
from vramtop.estimator.worker.rehearsal.fake_gpu import Doubts
from vramtop.estimator.worker.rehearsal.recurrent_kernels import recurrent_layers
from vramtop.estimator.worker.replaced import replaced
from vramtop.estimator.worker.rehearsal.cuda_kernels import cuda_kernels
live, made_by, now, peak, stepping, gloo, convolutions = {}, {}, 0, 0, 0, 0, Convolutions(has_tf32=True)
HOST = {torch.ops.aten.zeros.default, torch.ops.aten.ones.default, torch.ops.aten.lift_fresh.default}
def references(tensor):
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
ALONE = references(torch.empty(1))
def node():
    return getattr(torch._C._current_autograd_node(), "_sequence_nr", lambda: None)()
def sums_in_place(func, first=None, second=None, *_):
    return (
        func is torch.ops.aten.add.Tensor and torch._C._current_graph_task_id() >= 0 and not torch.is_grad_enabled()
        and is_by_engine(sys._getframe(2)) and made_by.get(first.untyped_storage()._cdata) != node()
        and isinstance(second, torch.Tensor) and first.shape == second.shape
        and first.untyped_storage().nbytes() == first.nbytes and references(first) == ALONE
    )
class Count(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls):
        return False
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        global now, peak
        if sums_in_place(func, *args):
            return args[0].add_(args[1])
        result = func(*args, **(kwargs or {}))
        leaves = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        for each in [part for each in leaves if not hasattr(each, "__tensor_flatten__") for part in parts_of(each)]:
            if not gloo and each.untyped_storage()._cdata not in live:
                storage = each.untyped_storage()
                key, size = storage._cdata, -(-storage.nbytes() // 512) * 512
                if stepping and func in HOST and not each.dim():
                    size = 0  # an optimizer counts its steps on the host
                live[key], made_by[key] = size, node()
                now += size
                peak = max(peak, now)
                weakref.finalize(storage, free, key)
        if func in (FORWARD, BACKWARD):
            for each in convolutions.workspaces(func, args, result):
                peak = max(peak, now + -(-each.expected // 512) * 512)
        return result
def free(key):
    global now
    now -= live.pop(key, 0)
def resize(storage, size, original=torch.UntypedStorage.resize_):
    global now, peak
    if storage._cdata in live and size != storage.nbytes():
        free(storage._cdata)
        live[storage._cdata] = -(-size // 512) * 512
        now += live[storage._cdata]
        peak = max(peak, now)
    return original(storage, size)
torch.UntypedStorage.resize_ = resize  # as FSDP1 empties and fills storages
SCATTER = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
def reduce(*args, original=getattr(dist, SCATTER), **kwargs):
    global gloo
    gloo += 1
    result = original(*args, **kwargs)
    gloo -= 1
    return result
setattr(dist, SCATTER, reduce)
def step(stepped, by):
    global stepping
    stepping += by * (type(stepped) is not torch.optim.ASGD)
register_optimizer_step_pre_hook(lambda optimizer, *_: step(optimizer, 1))
register_optimizer_step_post_hook(lambda optimizer, *_: step(optimizer, -1))
def made(optimizer, *args, make=torch.optim.Adagrad.__init__, **kwargs):
    step(optimizer, 1)
    make(optimizer, *args, **kwargs)
    step(optimizer, -1)
torch.optim.Adagrad.__init__ = made
for module in (optimizer, swa_utils):  # CUDA's defaults on the CPU
    module._get_foreach_kernels_supported_devices = lambda: ["cpu"]
sys.argv = sys.argv[1:]
layers = replaced(*recurrent_layers(lambda each: True, Doubts()))
with cuda_kernels(), layers, torch.backends.mkldnn.flags(enabled=False), Count():
    runpy.run_path(sys.argv[0], run_name="__main__")
print(peak)
"""
"""Runs a program with the kernels whose memory differs on CUDA by design imitated (attention, dropout, embeddings,
recurrent layers, cuDNN's workspaces), with those for lists of tensors (foreach) that torch chooses on CUDA,
without oneDNN's workspaces, with the numbers in which optimizers count their steps on the host (ASGD alone has them on
the GPU), with gradients that autograd adds in place where no dispatch mode is active, and without the copy that gloo
makes of what it reduces and NCCL does not."""


def real_peak(name: str, *words: str, ranks: int | None = 1) -> int:
    """Return the bytes that a program's tensors take at most, in whole blocks of CUDA's allocator.

    Args:
        name: the program's file.
        words: what it is given after the device.
        ranks: processes that are started, as torchrun does; the figure is the first one's. None: one alone.
    """
    counter = Path("real.py")
    counter.write_text(REAL, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    launched = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    first, *others = [
        subprocess.Popen(
            [sys.executable, str(counter), name, "cpu", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                **({} if ranks is None else {**launched, "RANK": str(rank), "LOCAL_RANK": str(rank)}),
            },
        )
        for rank in range(ranks or 1)
    ]
    output, errors = first.communicate()
    for each in others:
        each.communicate()
    assert not first.returncode, errors
    return int(output.split()[-1])
