"""The folder for checkpoints."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.formula.checkpoint_saving import checkpoint_bytes
from vramtop.estimator.job.job import Job, Lora, ModelSpec, Run, Training
from vramtop.monitor.preflight.checks.output_folder import check_output_folder
from vramtop.monitor.preflight.context import CheckContext

INLINE = ModelSpec(config={"model_type": "llama"})


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets the free space of every disk."""

    def set_room(free: int, *, files: int = 1000, inodes: int = 1000) -> None:
        room = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096, f_files=inodes, f_favail=files)
        monkeypatch.setattr(os, "statvfs", lambda path: room)

    return set_room


def with_run(make_context, run: Run) -> CheckContext:
    budget = estimate(Job(model=ModelSpec(id="meta-llama/Llama-3.1-8B"), training=Training(precision="bf16")))
    return make_context(Job(model=INLINE, run=run), quick_budget=lambda: budget)


def test_a_job_without_folders_is_skipped(make_context) -> None:
    assert check_output_folder(with_run(make_context, Run())).status == "skipped"


@pytest.mark.parametrize(
    ("free", "limit", "status", "words"),
    [
        (44, None, "failure", "no room for one"),
        (46, None, "pass", "room for 1; none is deleted"),
        (100, 2, "warning", "room for 2, but 2 and the newest are kept"),
        (140, 2, "pass", "room for the 2 that are kept"),
    ],
)
def test_free_space_for_checkpoints(make_context, disk, free, limit, status, words) -> None:
    """8.03 billion parameters in bf16, and two states for each: 44.9 GiB."""
    disk(free * GIB)
    found = check_output_folder(with_run(make_context, Run(output_dir="out/run", save_total_limit=limit)))
    assert (found.status, words in found.found) == (status, True)
    assert "about 44.87" in found.found


def test_a_full_disk(make_context, disk: Callable[..., None]) -> None:
    disk(0)
    run = Run(output_dir="out")
    assert check_output_folder(with_run(make_context, run)).status == "failure"
    disk(500 * GIB, files=0)
    assert "no inodes left" in check_output_folder(with_run(make_context, run)).found
    disk(500 * GIB, files=0, inodes=0)  # a file system that does not count inodes
    assert check_output_folder(with_run(make_context, run)).status == "pass"


def test_an_unwritable_folder_is_a_failure(make_context, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below", "/proc/none/out"):
        for run in (Run(output_dir=name), Run(logging_dir=name)):
            found = check_output_folder(with_run(make_context, run))
            assert (found.status, "cannot be written to" in found.found) == ("failure", True), name


def test_nothing_is_left_in_the_folder(make_context, tmp_path: Path) -> None:
    check_output_folder(with_run(make_context, Run(output_dir="out")))
    assert list(tmp_path.iterdir()) == []


def test_free_space_is_not_judged_for_a_model_of_unknown_size(make_context) -> None:
    def unknown() -> None:
        raise CannotTellError("it is code")

    found = check_output_folder(make_context(Job(model=INLINE, run=Run(output_dir="out")), quick_budget=unknown))
    assert (found.unknown, "it is code" in found.found) == (True, True)


@pytest.mark.parametrize(
    ("job", "bytes_per_parameter"),
    [
        (Training(precision="bf16"), 2 + 2 * 2),
        (Training(precision="bf16-mixed"), 4 + 2 * 4),
        (Training(precision="bf16", optimizer="paged-adamw"), 2 + 2 * 4),
        (Training(precision="bf16", optimizer="sgd"), 2),
        (Training(precision="bf16", optimizer="lion"), 2 + 2),
        (Training(mode="inference"), 0),
    ],
)
def test_the_size_of_a_checkpoint(job: Training, bytes_per_parameter: int) -> None:
    budget = estimate(Job(model=ModelSpec(id="gpt2"), training=job))
    assert checkpoint_bytes(budget) == bytes_per_parameter * 124_439_808


def test_checkpoints_of_adapters_hold_only_the_adapters() -> None:
    budget = estimate(Job(model=ModelSpec(id="gpt2"), lora=Lora(targets=["c_attn"])))
    assert checkpoint_bytes(budget) == budget.model.trainable_parameters * 4 * 3
