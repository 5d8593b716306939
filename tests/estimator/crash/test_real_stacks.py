"""Components by stack against what the tensors are by identity, in real steps of transformers under autograd."""

import json
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
    found, modules = {}, set()
    for name in truth:
        with (tmp_path / f"{name}.pickle").open("rb") as file:
            snapshot = parse_snapshot(file)
        found[name] = snapshot.components
        modules |= {group.module for group in snapshot.groups if group.component == "activations"}
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
    assert "model.layers.*" in modules
