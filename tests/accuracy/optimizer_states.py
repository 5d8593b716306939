"""Step optimizer classes of installed libraries, and record the bytes of their states beside the row of each.

    PYTHONPATH=tests python tests/accuracy/optimizer_states.py        with an interpreter that has the libraries

Nothing needs a GPU: each class is stepped on fake tensors, or on real ones where it looks at values. Classes that
cannot be stepped here keep the record that they have, with a line on stderr. The table of optimizers is compared with
the file by ``tests/estimator/job/rules/test_optimizer_states.py``; measure again when a library changes.
"""

import argparse
import importlib
import inspect
import json
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import packages_distributions, version
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from storage_counter import StorageCounter
from torch._subclasses.fake_tensor import FakeTensorMode

STEPS = 3
SHAPES = ((256, 512), (512, 256), (1024, 1024), (512,), (8192,))
GALORE = {"rank": 64, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
APOLLO = {"rank": 64, "update_proj_gap": 200, "scale": 1.0, "proj_type": "std", "proj": "random"}
OF_GALORE = {"rank": 64, "targets": "all-linear"}
PYTORCH_OPTIMIZER = {
    "one-state": "SignSGD AccSGD EmoLynx Gravity NovoGrad QHM RMSprop SGDSaI",
    "one-state-large-step": "BCOS SCION SGDP",
    "two-states": (
        "A2Grad ADOPT AdaBelief AdaBound AdaDelta AdaGC AdaMax AdaNorm Adam AdamC AdamS AdamW AdamWSN AvaGrad "
        "DAdaptLion DualAdam EmoNavi FOCUS Grams Kate LaProp MSVAG NAdam PAdam PNM QHAdam RAdam SRMM "
        "SimplifiedAdEMAMix StableSPAM TAM Yogi"
    ),
    "two-states-large-step": "AdamP Aida Ano EXAdam Magma",
    "ftrl": "FTRL",
    "three-states": (
        "AdEMAMix AdaMod AdaTAM AdamG AggMo DAdaptAdaGrad DAdaptSGD DiffGrad GrokFastAdamW MADGRAD Ranger"
    ),
    "three-states-large-step": "Adai ApolloDQN",
    "vsgd": "VSGD",
    "four-states": "AdaPNM AdaSmooth Adan",
}
"""Classes of pytorch-optimizer by the row that counts their states."""


def cases() -> Iterator[tuple[str, dict[str, Any], str, dict[str, Any]]]:
    """Yield (class, its options, row, the row's options)."""
    for name, row in {"AdamW": "adamw", "Lion": "lion", "AdEMAMix": "ademamix", "RMSprop": "rmsprop"}.items():
        yield f"bitsandbytes.optim:{name}", {}, f"{row}-32bit", {}
        yield f"bitsandbytes.optim:{name}8bit", {}, f"{row}-8bit", {}
    yield "bitsandbytes.optim:LAMB8bit", {}, "lamb-8bit", {}
    yield "bitsandbytes.optim:Adagrad8bit", {}, "adagrad-8bit", {}
    yield "bitsandbytes.optim:SGD8bit", {"momentum": 0.9}, "sgd-8bit", {}
    yield "bitsandbytes.optim:LARS8bit", {"momentum": 0.9}, "lars-8bit", {}
    yield "torchao.optim:AdamW8bit", {}, "adamw-8bit-torchao", {}
    yield "torchao.optim:AdamW4bit", {}, "adamw-4bit", {}
    yield "torchao.optim:AdamWFp8", {}, "adamw-fp8", {}
    yield "galore_torch:GaLoreAdamW", GALORE, "galore-adamw", OF_GALORE
    relative = {"scale_parameter": False, "relative_step": False, "lr": 1e-3}
    yield "galore_torch:GaLoreAdafactor", {**GALORE, **relative}, "galore-adafactor", OF_GALORE
    yield "apollo_torch:APOLLOAdamW", {**APOLLO, "scale_type": "channel"}, "apollo-adamw", OF_GALORE
    yield "lion_pytorch:Lion", {}, "lion", {}
    yield "pytorch_optimizer:Tiger", {}, "lion", {}
    yield "adan_pytorch:Adan", {}, "adan", {}
    yield "schedulefree:AdamWScheduleFree", {}, "schedule-free-adamw", {}
    yield "schedulefree:RAdamScheduleFree", {}, "schedule-free-radam", {}
    yield "schedulefree:SGDScheduleFree", {}, "schedule-free-sgd", {}
    yield "optimi:StableAdamW", {}, "stable-adamw", {}
    yield "optimi:AdamW", {}, "optimi-adamw", {}
    yield "grokadamw:GrokAdamW", {}, "grokadamw", {}
    yield "prodigyopt:Prodigy", {}, "prodigy", {}
    yield "dadaptation:DAdaptAdam", {}, "dadapt-adam", {}
    yield "came_pytorch:CAME", {"lr": 1e-4}, "came", {}
    yield "pytorch_optimizer:CAME", {}, "came-in-weights-dtype", {}
    yield "pytorch_optimizer:SOAP", {}, "soap", {}
    yield "pytorch_optimizer:SOAP", {"max_precondition_dim": 400}, "soap", {"max_precond_dim": 400}
    yield "pytorch_optimizer:Shampoo", {}, "shampoo", {}
    yield "pytorch_optimizer:LARS", {}, "lars", {}
    yield "pytorch_optimizer:Lamb", {}, "lamb", {}
    for row, names in PYTORCH_OPTIMIZER.items():
        for name in names.split():
            yield f"pytorch_optimizer:{name}", {}, row, {}


def make(kind: Any, options: dict[str, Any], name: str, parameter: torch.nn.Parameter) -> Any:
    """Return the optimizer; options that the class does not take by keyword belong to the group of matrices."""
    signature = inspect.signature(kind)
    names = list(signature.parameters)
    open_ended = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    own = {key: value for key, value in options.items() if key in names or open_ended}
    group = {key: value for key, value in options.items() if key not in own and parameter.dim() > 1}
    if "lr" in names and signature.parameters["lr"].default is inspect.Parameter.empty:
        own.setdefault("lr", 1e-4)
    if names[0] == "named_parameters":
        return kind([(name, parameter)], **own)
    return kind([{"params": [parameter], **group}], **own)


def step(kind: Any, options: dict[str, Any], shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, int]:
    """Step one parameter, and return the bytes of its states, and of temporary memory in a step."""
    parameter = torch.nn.Parameter(0.02 * torch.randn(shape).to(dtype))
    parameter.grad = 0.01 * torch.randn(shape).to(dtype)
    counter = StorageCounter(block=1)
    counter.ignore(parameter)
    counter.ignore(parameter.grad)
    with warnings.catch_warnings(), counter:
        warnings.simplefilter("ignore")
        optimizer = make(kind, options, "model.layers.0.mlp.up_proj.weight", parameter)
        if callable(getattr(optimizer, "train", None)):  # schedule-free optimizers evaluate at other weights
            optimizer.train()
        closure = inspect.signature(kind.step).parameters.get("closure")
        needed = closure is not None and closure.default is closure.empty
        for _ in range(STEPS):
            optimizer.step(*([lambda: torch.zeros(())] if needed else []))
        return counter.live, counter.peak - counter.live  # in some, projections make the first step the highest


def steps(path: str, options: dict[str, Any]) -> list[tuple[int, int]]:
    """Step a class on all shapes and dtypes: on fake tensors, or on real ones if that fails."""
    module, _, name = path.partition(":")
    kind = attrgetter(name)(importlib.import_module(module))
    cases = [(shape, dtype) for dtype in (torch.float32, torch.bfloat16) for shape in SHAPES]
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return [step(kind, options, *case) for case in cases]
    except Exception:  # noqa: BLE001 - optimizers that read values fail in as many ways as there are optimizers
        torch.manual_seed(0)
        return [step(kind, options, *case) for case in cases]


def measure(known: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a record per case that can be stepped, or is known."""
    # compiling takes minutes, and changes no state
    torch.compile = lambda model=None, **_options: (lambda each: each) if model is None else model
    for path, options, row, row_options in cases():
        try:
            found = steps(path, options)
        except Exception as error:  # noqa: BLE001 - a library that is not installed, or that needs a GPU
            sys.stderr.write(f"{path}: {error}\n")
            yield from ({**each, "row": row} for each in known if (each["class"], each["options"]) == (path, options))
            continue
        package = path.partition(":")[0].partition(".")[0]
        distribution = packages_distributions().get(package, [package])[0]
        yield {
            "class": path,
            "options": options,
            "row": row,
            "row_options": row_options,
            "distribution": f"{distribution} {version(distribution)}",
            "states": [states for states, _ in found],
            "step": [temporary for _, temporary in found],
        }


def main() -> int:
    """Measure all classes and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    known = json.loads(options.out.read_text()) if options.out.exists() else []
    records = ",\n".join(json.dumps(record) for record in measure(known))
    options.out.write_text(f"[\n{records}\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
