"""What cuDNN's convolutions take beside their tensors, measured call by call in ten networks.

    convolutions.py [--benchmark] [--cpu]

Starts itself again under the Python that has torch (``VRAMTOP_TORCH_PYTHON``). Each network trains for two steps in
fp32, in TF32, under autocast in bf16, and in TF32 with channels last. A line of JSON for each call that differs gives
its shapes, the bytes of its tensors and what the allocator's peak was above them, at the first call and at the last;
``reserved_bytes`` of a network's own line are those of two further steps, in which nothing is measured.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NAMES = ("resnet50", "vit", "unet", "vgg16", "mobilenet", "resnext", "convnext", "dilated", "transposed", "volumes")
MODES = ("fp32", "tf32", "bf16-autocast", "tf32, channels last")


def main() -> int:
    """Print the figures of each network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--benchmark", action="store_true", help="cuDNN tries its plans (torch.backends.cudnn.benchmark)"
    )
    parser.add_argument("--cpu", action="store_true", help="run small networks on the CPU; what only a GPU has is null")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.run:
        python = os.environ.get("VRAMTOP_TORCH_PYTHON", sys.executable)
        return subprocess.run([python, __file__, "--run", *sys.argv[1:]], check=False).returncode
    import torch

    torch.backends.cudnn.benchmark = options.benchmark
    for name in NAMES:
        for mode in MODES:
            try:
                lines = list(_measure(name, mode, "cpu" if options.cpu else "cuda"))
            except Exception as error:  # noqa: BLE001 - what fails is a result, and the rest is to be measured
                lines = [{"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}]
            for number, line in enumerate(lines):
                own = f"{name}, {mode}" + (f", call {number}" if number else "")
                print(json.dumps({"name": own, **line}), flush=True)
            if not options.cpu:
                torch.cuda.empty_cache()
    return 0


def _measure(name: str, mode: str, device: str) -> Iterator[dict[str, Any]]:
    """Yield the network's line, then those of its calls."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = mode.startswith("tf32")
    network, shape = _networks(small=device == "cpu")[name]()
    last = torch.channels_last if mode.endswith("last") and len(shape) == 3 else torch.contiguous_format
    network = network.to(device, memory_format=last)
    images = torch.randn(2 if device == "cpu" else 32 if len(shape) == 3 else 4, *shape).to(device, memory_format=last)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=mode == "bf16-autocast"):
            loss = network(images).float().square().mean()
        loss.backward()
        network.zero_grad()

    with _calls(device) as seen:
        for _ in range(2):
            step()
    own: dict[str, Any] = {"reserved_bytes": None, "allocated_bytes": None}
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            step()
        own = {"reserved_bytes": torch.cuda.max_memory_reserved(), "allocated_bytes": torch.cuda.max_memory_allocated()}
    yield {**own, "calls": len(seen)}
    yield from seen.values()


def _calls(device: str) -> Any:
    """Return a context in which every convolution is measured; it yields the lines of calls that differ."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    forward, backward = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default

    def measured(run: Callable[[], Any]) -> tuple[Any, int | None]:
        if device == "cpu":
            return run(), None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        result = run()
        torch.cuda.synchronize()
        return result, torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()

    class Calls(TorchDispatchMode):
        def __enter__(self) -> Any:
            super().__enter__()
            self.seen: dict[Any, dict[str, Any]] = {}
            return self.seen

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is forward:
                result, extra = measured(lambda: func(*args))
                self.note("forward", args[0], args[1], result, args[3:9], extra)
                return result
            if func is not backward:
                return func(*args, **(kwargs or {}))
            *rest, needed = args
            found = [None, None, None]
            for call, parts in (("input", (0,)), ("weight", (1, 2))):
                mask = [at in parts and needed[at] for at in range(3)]
                if any(mask):
                    results, extra = measured(lambda mask=mask: func(*rest, mask))  # type: ignore[misc]
                    found = [
                        new if at in parts else old for at, (new, old) in enumerate(zip(results, found, strict=True))
                    ]
                    self.note(call, args[1], args[2], args[0], args[4:10], extra)
            return tuple(found)

        def note(self, call: str, x: Any, w: Any, y: Any, settings: Any, extra: int | None) -> None:
            key = (call, *(tuple(each.shape) for each in (x, w, y)), str(settings), x.dtype)
            first = self.seen.get(key, {}).get("first_bytes", extra)
            self.seen[key] = {
                "call": call,
                "input": list(x.shape),
                "weight": list(w.shape),
                "output": list(y.shape),
                "settings": [list(each) if isinstance(each, (list, tuple)) else each for each in settings],
                "dtype": str(x.dtype).removeprefix("torch."),
                "strides": list(x.stride()),
                "tensor_bytes": sum(each.numel() * each.element_size() for each in (x, w, y)),
                "first_bytes": first,
                "last_bytes": extra,
            }

    return Calls()


def _networks(*, small: bool) -> dict[str, Callable[[], tuple[Any, tuple[int, ...]]]]:
    """Return what makes each network and the shape of one of its images."""
    sys.path.insert(0, str(Path(__file__).parent))
    import vision
    from torch import nn

    side, wide = (32, 8) if small else (224, 64)

    def layers(*steps: tuple[Any, ...], kind: Any = nn.Conv2d, inputs: int = 3, **options: Any) -> Any:
        """A stack of outputs, kernels and strides; with ``groups=0`` each channel is a group."""
        made: list[nn.Module] = []
        for outputs, kernel, stride in steps:
            groups = {"groups": inputs if options["groups"] == 0 else options["groups"]} if "groups" in options else {}
            own = {} if inputs == 3 or kernel == 1 else groups
            rest = {key: value for key, value in options.items() if key != "groups"}
            padding = (kernel - stride) // 2 if kind is nn.ConvTranspose2d else rest.get("dilation", 1) * (kernel // 2)
            made += [kind(inputs, outputs, kernel, stride, padding, **(own | (rest if kernel > 1 else {}))), nn.ReLU()]
            inputs = outputs
        return nn.Sequential(*made)

    def whole(model: Any) -> Any:
        return getattr(model, "body", model)

    image = (3, side, side)
    narrow = ((wide, 3, 1), (wide, 3, 1), (2 * wide, 3, 2), (2 * wide, 3, 1), (4 * wide, 3, 2), (4 * wide, 3, 1))
    blocks = ((wide // 2, 3, 2), *[(wide // 2, 3, 1), (wide, 1, 1), (wide, 3, 2), (2 * wide, 1, 1), (2 * wide, 3, 1)])
    return {
        "resnet50": lambda: (whole(vision.ResNet50()), image),
        "vit": lambda: (nn.Sequential(vision.VisionTransformer().patches), image),
        "unet": lambda: (_Restored(vision.UNet(wide // 4, 2 if small else 4)), image),
        "vgg16": lambda: (layers(*narrow, (8 * wide, 3, 2), (8 * wide, 3, 1)), image),
        "mobilenet": lambda: (layers(*blocks, groups=0), image),
        "resnext": lambda: (layers((2 * wide, 7, 2), *[(2 * wide, 3, 1), (4 * wide, 1, 1)] * 3, groups=4), image),
        "convnext": lambda: (layers((wide, 4, 4), (wide, 7, 1), (4 * wide, 1, 1), (wide, 1, 1), groups=0), image),
        "dilated": lambda: (layers((wide, 7, 2), (wide, 3, 1), (2 * wide, 3, 1), dilation=2), image),
        "transposed": lambda: (
            layers(
                (8 * wide, 4, 2), (4 * wide, 4, 2), (2 * wide, 4, 2), (3, 4, 2), kind=nn.ConvTranspose2d, inputs=100
            ),
            (100, side // 16, side // 16),
        ),
        "volumes": lambda: (
            layers((wide // 2, 3, 1), (wide, 3, 2), (2 * wide, 3, 2), kind=nn.Conv3d),
            (3, side // 8, side // 2, side // 2),
        ),
    }


def _Restored(model: Any) -> Any:  # noqa: N802 - makes a module
    """Return a module that gives the image that a U-Net restores, instead of its loss."""
    from torch import nn

    class Restored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, images: Any) -> Any:
            return self.inner(images)["loss"].reshape(1)

    return Restored()


if __name__ == "__main__":
    raise SystemExit(main())
