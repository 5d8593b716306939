"""Lower bound, fit verdict, host memory, shared memory, and the folder for checkpoints."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import make_budget, make_gpu, make_mig_gpu

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CancelledError, CannotTellError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB, MIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.formula.checkpoint_saving import checkpoint_bytes
from vramtop.estimator.job.job import Job, Lora, ModelSpec, Parallel, Run, Training
from vramtop.monitor.preflight.check import CheckContext
from vramtop.monitor.preflight.checks.folders import check_output_folder
from vramtop.monitor.preflight.checks.memory import check_fit_verdict, check_host_memory, check_shared_memory
from vramtop.monitor.preflight.machine import Machine

LLAMA = ModelSpec(id="meta-llama/Llama-3.1-8B")


def job(precision: str = "bf16", **tables: Any) -> Job:
    return Job(model=LLAMA, training=Training(precision=precision), **tables)  # type: ignore[arg-type]


def with_free(make_context, asked: Job, *gib: float, **changes: Any) -> CheckContext:
    gpus = [make_gpu(index, free_bytes=round(size * GIB)) for index, size in enumerate(gib)]
    budget = estimate(asked)
    return make_context(asked, gpus=gpus, quick_budget=lambda: budget, deepest_budget=lambda: budget, **changes)


def test_the_gpus_of_the_job_are_checked_and_others_are_suggested(make_context) -> None:
    asked = job(lora=Lora())
    context = with_free(make_context, asked, 10, 70)
    found = check_fit_verdict(context)  # it takes GPU 0
    assert (found.status, found.advice) == ("failure", "it fits on others: CUDA_VISIBLE_DEVICES=1")
    second = replace(context, environ={"CUDA_VISIBLE_DEVICES": "1"})
    assert check_fit_verdict(second).status == "pass"
    named = replace(context, machine=replace(context.machine, chosen=True))
    assert check_fit_verdict(named).status == "pass"


def test_a_tight_fit_is_a_warning(make_context) -> None:
    budget = make_budget(device=40, high=50)
    context = make_context(gpus=[make_gpu(0, free_bytes=45 * GIB)], deepest_budget=lambda: budget)
    found = check_fit_verdict(context)
    assert (found.status, found.unknown) == ("warning", False)


def test_memory_unknown_to_nvml_is_not_guessed(make_context) -> None:
    context = make_context(gpus=[make_gpu(0, free_bytes=None)])
    assert check_fit_verdict(context).unknown


def test_the_closed_form_is_used_if_a_deep_budget_takes_too_long(make_context) -> None:
    def slow() -> Budget:
        raise CancelledError("given up")

    found = check_fit_verdict(make_context(deepest_budget=slow))
    assert (found.status, "deeper methods took too long" in found.found) == ("pass", True)

    def impossible() -> Budget:
        raise CannotTellError("no shape")

    with pytest.raises(CannotTellError):
        check_fit_verdict(make_context(deepest_budget=impossible))


def test_only_the_ranks_of_this_machine_count(make_context) -> None:
    asked = job(lora=Lora(), parallel=Parallel(strategy="ddp", data_replicate=4))
    context = with_free(make_context, asked, 70, 70, local_ranks=2)
    found = check_fit_verdict(context)
    assert (found.status, "on this machine alone" in found.found) == ("pass", True)
    assert check_fit_verdict(replace(context, local_ranks=None)).status == "failure"


@pytest.mark.parametrize(
    ("gib", "ranks", "status"), [(64, 1, "pass"), (20, 1, "failure"), (64, 4, "failure"), (None, 1, "skipped")]
)
def test_host_memory_is_checked(make_context, gib: int | None, ranks: int, status: str) -> None:
    """Each rank loads 8 billion parameters in fp32 from a 16-bit checkpoint."""
    asked = job("bf16-mixed", parallel=Parallel(strategy="ddp", data_replicate=ranks))
    budget = estimate(asked)
    context = make_context(asked, quick_budget=lambda: budget)
    host = None if gib is None else gib * GIB
    found = check_host_memory(replace(context, machine=replace(context.machine, host=host)))
    assert found.status == status
    one = replace(context, machine=replace(context.machine, host=host), local_ranks=1)
    assert ranks == 1 or check_host_memory(one).status == "pass"


def test_only_the_named_mig_device_is_checked(make_context) -> None:
    """The named device has 20 GiB, of which 19 are free; the other one has 39 free."""
    asked = job()
    budget = estimate(asked)
    environ = {"CUDA_VISIBLE_DEVICES": "MIG-0-9-0"}
    asked_of = {
        "gpus": [make_mig_gpu()],
        "quick_budget": lambda: budget,
        "deepest_budget": lambda: budget,
        "environ": environ,
    }
    assert budget.peak.device_bytes > 39 * GIB
    failed = check_fit_verdict(make_context(asked, **asked_of))
    assert (failed.status, failed.advice) == ("failure", "vramtop fit suggests how to make it smaller")
    short = budget.peak.device_bytes / GIB - 19
    assert f"GPU 0:9 (MIG 1g.20gb) is {short:.1f} GiB short" in failed.found
    small = replace(budget, peak=replace(budget.peak, device_bytes=30 * GIB, high_bytes=31 * GIB))
    moved = check_fit_verdict(make_context(asked, **(asked_of | {"deepest_budget": lambda: small})))
    assert (moved.status, moved.advice) == ("failure", "it fits on others: CUDA_VISIBLE_DEVICES=MIG-0-3-0")


@pytest.mark.parametrize(("free", "status"), [(0, "failure"), (64 * MIB, "warning"), (4096 * MIB, "pass")])
def test_shared_memory(make_context, tmp_path, monkeypatch, free, status) -> None:
    def four_ranks(environ: dict[str, str] | None = None, **changes: Any) -> CheckContext:
        job = Job(model=ModelSpec(id="gpt2"), parallel=Parallel(strategy="ddp", data_replicate=4))
        return make_context(job, environ=environ or {}, **changes)

    disk = SimpleNamespace(f_bavail=free // 4096, f_frsize=4096, f_blocks=2**21)
    monkeypatch.setattr("os.statvfs", lambda path: disk)
    assert check_shared_memory(four_ranks(), tmp_path).status == status
    assert check_shared_memory(four_ranks({"NCCL_SHM_DISABLE": "1"}), tmp_path).status == "skipped"
    assert check_shared_memory(four_ranks(), tmp_path / "none").status == "failure"
    assert check_shared_memory(make_context()).status == "skipped"
    assert check_shared_memory(four_ranks(machine=Machine(devices=()))).status == "skipped"


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
    assert check_output_folder(with_run(make_context, Run())).status == "skipped"
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
        (Training(precision="bf16-mixed"), 4 + 2 * 4),
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
