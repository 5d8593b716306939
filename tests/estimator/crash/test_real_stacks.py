"""Components by stack against what the tensors are by identity, in real steps of transformers under autograd."""

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vramtop.estimator.crash.snapshot.snapshot_reader import parse_snapshot


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", ["plain", "checkpointing"])
def test_stacks_of_a_real_step_tell_what_its_tensors_are(checkpointing: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    program = Path(__file__).parent / "real_step.py"
    ran = subprocess.run(
        [sys.executable, str(program), checkpointing, str(tmp_path)], capture_output=True, text=True, check=True
    )
    truth = json.loads(ran.stdout.splitlines()[-1])
    found = {}
    for name in truth:
        with (tmp_path / f"{name}.pickle").open("rb") as file:
            found[name] = parse_snapshot(file).components
    for name, actual in truth.items():
        assert found[name].get("weights", 0) == actual["weights"]
        assert found[name].get("optimizer", 0) == actual["optimizer"]
        assert found[name].get("gradients", 0) == actual["gradients"]
    forward = found["forward"]
    saved = forward["activations"] + forward["logits"]
    if checkpointing == "plain":
        inputs_and_loss = 2 * 48 * 8 + 4  # the batch, which is also saved, and the loss, which is not
        assert abs(saved - truth["forward"]["saved"]) <= inputs_and_loss
    assert set(forward) <= {"weights", "optimizer", "activations", "logits", "unknown"}
    assert forward.get("unknown", 0) <= 2 * 48 * 8
    modules_are_those_that_ran(tmp_path / "forward.pickle")


def modules_are_those_that_ran(path: Path) -> None:
    """Bytes by module as the stacks say it, against the modules whose forward pass ran: by hooks."""
    with path.open("rb") as file:
        found = [group for group in parse_snapshot(file).groups if group.module and group.component == "activations"]
    by_path: dict[str, int] = {}
    for group in found:
        known = re.sub(r"\.\(\w+\)", "", group.module)  # a class in brackets: which attribute is not known
        by_path[known] = by_path.get(known, 0) + group.bytes
    truth: dict[str, int] = {}
    [segment] = pickle.loads(path.read_bytes())["segments"]  # noqa: S301 - of this test
    for block in segment["blocks"]:
        if block["module"] is not None and any(frame["name"] == "forward" for frame in block["frames"]):
            real = re.sub(r"\.\d+", ".*", block["module"])
            nearest = max((each for each in by_path if f"{real}.".startswith(f"{each}.")), key=len, default=real)
            truth[nearest] = truth.get(nearest, 0) + block["size"]
    assert {name: size for name, size in truth.items() if name} == by_path
    assert "model.layers.*" in by_path
    assert {name for name in by_path if name.count(".") >= 3} or len(by_path) < 6
