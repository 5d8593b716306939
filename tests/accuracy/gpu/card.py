"""What a process holds of a GPU beside torch's memory: the CUDA context, then each library's first kernel on top of it.

    card.py [--loading LAZY|EAGER] [--cpu]

Starts itself again under the Python that has torch (``VRAMTOP_TORCH_PYTHON``), where each stage is run; after each,
NVML is read from here, and a line of JSON is printed: bytes of the process and of the whole device, and torch's own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

_LOCAL = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}


def main() -> int:
    """Print the figures of each stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loading", choices=("LAZY", "EAGER"), default="LAZY", help="when CUDA loads kernels")
    parser.add_argument("--cpu", action="store_true", help="run the stages on the CPU; what only a GPU has is null")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    return _run_stages("cpu" if options.cpu else "cuda") if options.run else _watch(options)


def _watch(options: argparse.Namespace) -> int:
    command = [os.environ.get("VRAMTOP_TORCH_PYTHON", sys.executable), __file__, "--run"]
    environ = {**os.environ, **_LOCAL, "CUDA_MODULE_LOADING": options.loading}
    read = _nothing if options.cpu else _nvml_reader()
    before = read(0)[1]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*command, *(["--cpu"] if options.cpu else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environ,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for line in process.stdout:
                own, device = read(process.pid)
                grown = None if device is None or before is None else device - before
                print(json.dumps({**json.loads(line), "process_bytes": own, "device_bytes": grown}), flush=True)
                process.stdin.write("\n")
                process.stdin.flush()
        finally:
            process.kill()
            code = process.wait()
        errors.seek(0)
        lines = errors.read().split("\n")
    if code not in (0, -9):
        print(json.dumps({"name": "end", "error": f"code {code}: {' '.join(lines[-3:])[-300:]}"}), flush=True)
    return 0


def _nothing(_pid: int) -> tuple[int | None, int | None]:
    return None, None


def _nvml_reader() -> Callable[[int], tuple[int | None, int | None]]:
    """Return what reads the bytes of a process and of the device: of the first that CUDA may use."""
    import pynvml

    pynvml.nvmlInit()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    by_index = visible.isdecimal()
    device = pynvml.nvmlDeviceGetHandleByIndex(int(visible)) if by_index else pynvml.nvmlDeviceGetHandleByUUID(visible)

    def read(pid: int) -> tuple[int | None, int | None]:
        try:
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
            own = next((each.usedGpuMemory for each in processes if each.pid == pid), None)
        except pynvml.NVMLError:
            own = None
        return own, pynvml.nvmlDeviceGetMemoryInfo(device).used

    return read


def _run_stages(device: str) -> int:
    """Run each stage; its line is written, and the next one waits until it was read."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print
    for name, stage in _stages(device):
        started = time.monotonic()
        found: dict[str, Any] = {"name": name}
        try:
            stage()
            if device == "cuda" and name != "torch imported":
                import torch

                torch.cuda.synchronize()
                found["allocated_bytes"] = torch.cuda.memory_allocated()
                found["reserved_bytes"] = torch.cuda.memory_reserved()
        except Exception as error:  # noqa: BLE001 - a library that is missing or broken is a figure
            found["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        lines.write(json.dumps({**found, "seconds": round(time.monotonic() - started, 3)}) + "\n")
        lines.flush()
        if not sys.stdin.readline():  # who reads has ended
            return 1
    return 0


def _stages(device: str) -> list[tuple[str, Callable[[], object]]]:
    import torch
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel

    cuda = device == "cuda"

    def matrix(dtype: Any = torch.float32) -> Any:
        return torch.ones(256, 256, dtype=dtype, device=device, requires_grad=True)

    def heads(dtype: Any) -> Any:
        return torch.ones(1, 4, 128, 64, dtype=dtype, device=device, requires_grad=True)

    def attention(backend: Any, dtype: Any) -> None:
        with sdpa_kernel(backend):
            functional.scaled_dot_product_attention(*(heads(dtype) for _ in range(3)), is_causal=True).sum().backward()

    def convolution() -> None:
        layer = torch.nn.Conv2d(3, 16, 3).to(device)
        layer(torch.ones(2, 3, 32, 32, device=device)).sum().backward()

    def step(**options: bool) -> None:
        parameter = torch.nn.Parameter(matrix().detach())
        parameter.grad = torch.ones_like(parameter)
        torch.optim.AdamW([parameter], **options).step()

    def loss() -> None:
        logits = functional.layer_norm(matrix(), (256,)).softmax(-1)
        functional.cross_entropy(logits, torch.zeros(256, dtype=torch.long, device=device)).backward()

    def collective() -> None:
        torch.distributed.init_process_group("nccl" if cuda else "gloo")
        torch.distributed.all_reduce(torch.ones(1 << 20, device=device))

    return [
        ("torch imported", lambda: None),
        ("CUDA context", torch.cuda.synchronize if cuda else lambda: None),
        ("first tensor", lambda: torch.empty(1, device=device)),
        ("first kernel", lambda: torch.ones(1, device=device) + 1),
        ("cuBLAS, fp32", lambda: (matrix() @ matrix()).sum().backward()),
        ("cuBLAS, bf16", lambda: (matrix(torch.bfloat16) @ matrix(torch.bfloat16)).sum().backward()),
        ("cuBLASLt, bf16 with bias", lambda: torch.nn.Linear(256, 256, device=device, dtype=torch.bfloat16)(
            matrix(torch.bfloat16)
        ).sum().backward()),
        ("cuDNN convolution", convolution),
        ("attention, flash", lambda: attention(SDPBackend.FLASH_ATTENTION, torch.bfloat16)),
        ("attention, memory-efficient", lambda: attention(SDPBackend.EFFICIENT_ATTENTION, torch.float32)),
        ("attention, math", lambda: attention(SDPBackend.MATH, torch.float32)),
        ("attention, cuDNN", lambda: attention(SDPBackend.CUDNN_ATTENTION, torch.bfloat16)),
        ("norm, softmax, loss", loss),
        ("cuRAND, dropout", lambda: functional.dropout(torch.randn(1 << 16, device=device), 0.1)),
        ("AdamW, foreach", lambda: step(foreach=True)),
        ("AdamW, fused", lambda: step(fused=True)),
        ("cuFFT", lambda: torch.fft.fft(torch.ones(1024, device=device))),
        ("cuSOLVER", lambda: torch.linalg.cholesky(torch.eye(64, device=device))),
        ("NCCL, one rank", collective),
        *([("Triton, compiled", lambda: torch.compile(lambda x: (x * 2).relu().sum())(matrix()))] if cuda else []),
    ]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
