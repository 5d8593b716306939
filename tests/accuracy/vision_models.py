"""Rehearse models of timm and compare what torch reserves with what a public study measured on an A100.

Rows: ``vision_models.csv``, nvidia-smi's maximum at batch 64, from itu-rad/GPUMemNet (arXiv 2602.17817): every third
model of these families whose figures do not fall as the batch grows. The study's torch loads whole libraries; what
they take was inferred from the figures. The rule for cuDNN's workspaces was found on rows of this study, some of
these among them.
"""

import csv
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vramtop.estimator.budget import Span
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.sizes import MIB
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Program
from vramtop.estimator.trace.rehearsal import rehearse_job

FOLDER = Path(__file__).parent
BASE_BYTES = 1688 * MIB
"""CUDA context with cuDNN and all kernels: test_vit of the study takes it beside its tensors within 2 MiB."""
BATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionRow:
    """One model."""

    name: str
    measured_bytes: int
    """What the device showed, less the base."""
    predicted_bytes: int
    span: Span
    """Range of the reserved bytes."""

    @property
    def error(self) -> float:
        """Relative error: 0.1 is 10 % too high."""
        return self.predicted_bytes / self.measured_bytes - 1


def rehearse_vision_models() -> Iterator[VisionRow | str]:
    """Yield each model, some seconds apart, or why it was not rehearsed."""
    with (FOLDER / "vision_models.csv").open(encoding="utf-8") as file:
        cases = list(csv.DictReader(file))
    for case in cases:
        command = shlex.join([sys.executable, str(FOLDER / "vision_training.py"), case["model"], str(BATCH)])
        job = Job(program=Program(command=command, folder=str(FOLDER)))
        try:
            peak = rehearse_job(job, gpu=find_gpu("a100-40gb"), may_run=True, kept=False).budget.peak
        except VramtopError as error:
            yield f"{case['model']}: {error}"
            continue
        yield VisionRow(
            name=case["model"],
            measured_bytes=int(case["device_mib"]) * MIB - BASE_BYTES,
            predicted_bytes=peak.reserved_bytes,
            span=peak.reserved_range,
        )
