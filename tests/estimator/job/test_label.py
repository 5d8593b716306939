"""The name under which a program's job is shown."""

import pytest

from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Program


@pytest.mark.parametrize(
    ("command", "label"),
    [
        ("python src/train.py --epochs 3", "train.py"),
        ("torchrun --nproc-per-node 2 train.py --steps 50", "train.py"),
        ("python -m trl.scripts.sft --max_steps 50", "trl.scripts.sft"),
        ("accelerate launch -m pack.train out", "pack.train"),
        ("LR=1e-4 .venv/bin/trl sft --max_steps 50", "trl"),
        ("", "program"),
    ],
)
def test_a_program_is_named_by_its_script_or_module(command: str, label: str) -> None:
    assert Job(program=Program(command=command)).label == label
