"""Step optimizer classes of installed libraries, and record the bytes of their states beside the row of each.

    python optimizer_states.py --out optimizer_states.json        with an interpreter that has the libraries

Nothing needs a GPU: the worker's operation ``optimizer`` steps each class on fake or small real tensors. Classes that
cannot be stepped here are left out, with a line on stderr. ``tests/estimator/job/rules/test_optimizer_states.py``
compares the file with the table of optimizers; measure again when a library changes.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WORKER = Path(__file__).parents[2] / "estimator" / "worker" / "__main__.py"
SHAPES = ((256, 512), (512, 256), (1024, 1024), (512,), (8192,))
GALORE = {"rank": 64, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
APOLLO = {"rank": 64, "update_proj_gap": 200, "scale": 1.0, "proj_type": "std", "proj": "random"}
OF_GALORE = {"rank": 64, "targets": "all-linear"}
PYTORCH_OPTIMIZER = {
    "one-state": "SignSGD AccSGD BCOS EmoLynx Gravity NovoGrad QHM RMSprop SCION SGDP SGDSaI",
    "two-states": (
        "A2Grad ADOPT AdaBelief AdaBound AdaDelta AdaGC AdaMax AdaNorm Adam AdamC AdamP AdamS AdamW AdamWSN Aida Ano "
        "AvaGrad DAdaptLion DualAdam EXAdam EmoNavi FOCUS FTRL Grams Kate LaProp MSVAG Magma NAdam PAdam PNM QHAdam "
        "RAdam SRMM SimplifiedAdEMAMix StableSPAM TAM Yogi"
    ),
    "three-states": (
        "AdEMAMix AdaMod AdaTAM Adai AdamG AggMo ApolloDQN DAdaptAdaGrad DAdaptSGD DiffGrad GrokFastAdamW MADGRAD "
        "Ranger VSGD"
    ),
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


def measure(python: str) -> Iterator[dict[str, Any]]:
    """Yield a record per case that can be stepped."""
    tensors = [{"shape": shape, "dtype": dtype} for dtype in ("float32", "bfloat16") for shape in SHAPES]
    every = list(cases())
    lines = [
        json.dumps({"id": at, "op": "optimizer", "path": path, "options": options, "tensors": tensors})
        for at, (path, options, _, _) in enumerate(every)
    ]
    worker = subprocess.run(
        [python, str(WORKER)],  # the interpreter that the caller names
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    for (path, options, row, row_options), line in zip(every, worker.stdout.splitlines(), strict=True):
        answer = json.loads(line)
        if "states" not in answer:
            sys.stderr.write(f"{path}: {answer.get('unsupported') or answer.get('error')}\n")
            continue
        yield {
            "class": path,
            "options": options,
            "row": row,
            "row_options": row_options,
            "distribution": answer["distribution"],
            "states": answer["states"],
            "step": answer["step"],
        }


def main() -> int:
    """Measure all classes and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the libraries")
    options = parser.parse_args()
    records = ",\n".join(json.dumps(record) for record in measure(options.python))
    options.out.write_text(f"[\n{records}\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
