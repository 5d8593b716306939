"""Rehearsals of random programs against the same programs run for real on the CPU, with all tensors counted."""

import sys
from pathlib import Path

import pytest
from random_programs import random_program
from real_run import real_peak
from rehearsed import rehearse

pytest.importorskip("torch")

PROGRAMS = 300
SAMPLE = (6,)
SMALL_BYTES = 4096


@pytest.mark.parametrize(
    "seed", [*SAMPLE, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(PROGRAMS) if seed not in SAMPLE)]
)
def test_a_random_program_takes_what_it_takes_for_real(in_folder, quick_rehearsals, seed) -> None:
    Path("train.py").write_text(random_program(seed), encoding="utf-8")
    found = rehearse([sys.executable, "train.py", "cuda"])
    taken = found.allocated_bytes - found.workspace_bytes
    depends_on_values = any("branches on a value" in each for each in found.warnings)
    assert taken == pytest.approx(real_peak("train.py"), rel=0.2 if depends_on_values else 0.01, abs=SMALL_BYTES)
