"""Loops of other frameworks, traced: against the closed form, which was derived from their sources by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from vramtop.estimator.budget import Budget
from vramtop.estimator.formula import workspace_bytes
from vramtop.estimator.job import generation_of, resolve_job
from vramtop.estimator.job.job_file import job_from_mapping
from vramtop.estimator.trace.traced_loop import loop_request

torch = pytest.importorskip("torch")

Estimate = Callable[..., Budget]
SHARDED = {"strategy": "fsdp2", "data_shard": 4}
FULL, SELECTIVE = {"activation_checkpointing": "full"}, {"activation_checkpointing": "selective"}
LIGER = {"fused_kernels": ["norm", "mlp", "rope"]}
LOOPS: list[Any] = [
    ({"framework": "automodel"}, SHARDED),
    ({"framework": "torchtune", "loss": "chunked", **FULL}, {}),
    *(
        pytest.param(*tables, marks=pytest.mark.slow)
        for tables in (
            ({"framework": "automodel"}, {}),
            ({"framework": "automodel", **FULL}, SHARDED),
            ({"framework": "automodel", "loss": "fused-linear", **FULL}, SHARDED),
            ({"framework": "torchtune"}, {}),
            ({"framework": "torchtune", "compile": True}, {}),
            ({"framework": "torchtune", "loss": "chunked", "compile": True}, SHARDED),
            ({"framework": "torchtitan"}, SHARDED),
            ({"framework": "torchtitan", **SELECTIVE}, SHARDED),
            ({"framework": "torchtitan", **FULL}, SHARDED),
            ({"framework": "torchtitan", "compile": True}, SHARDED),
            ({"framework": "torchtitan", "compile": True, **SELECTIVE}, SHARDED),
            (LIGER, {}),
            ({**LIGER, "fused_kernels": ["norm", "cross-entropy"]}, {}),
            ({"loss": "fused-linear", **FULL}, SHARDED),
            ({"loss": "fused-linear"}, {}),
            ({"keep_outputs": True}, {}),
        )
    ),
]


def traced(ask_worker: Any, config: dict[str, Any], tables: dict[str, Any]) -> dict[str, int]:
    job = job_from_mapping({"model": {"config": config}, **tables}, where="test")
    older = {"reduces_in_own_pool": resolve_job(job).versions.reduces_in_own_pool}
    message = {"op": "trace", "config": config, **tables, "loop": loop_request(job, config["model_type"]), "older": older}
    answer = ask_worker(message)
    assert "unsupported" not in answer, answer
    return {name: phase["allocated"] for name, phase in answer["phases"].items()}


@pytest.mark.parametrize(("training", "parallel"), LOOPS)
@pytest.mark.parametrize(
    "software", [{}, pytest.param({"torch": "2.3", "transformers": "5.0"}, marks=pytest.mark.slow)], ids=["new", "old"]
)
def test_a_traced_loop_takes_what_the_closed_form_counts(
    ask_worker: Any,
    budget_of: Estimate,
    tiny_llama: dict[str, Any],
    training: dict[str, Any],
    parallel: dict[str, Any],
    software: dict[str, str],
) -> None:
    common = {"precision": "bf16-mixed" if training.get("framework") == "torchtitan" else "bf16", "micro_batch": 2}
    tables = {"training": {**common, **training}, "parallel": {**parallel}, "software": software}
    found = traced(ask_worker, tiny_llama, {key: table for key, table in tables.items() if key != "software"} | tables)
    settings = {f"{table}.{key}": value for table, fields in tables.items() for key, value in fields.items()}
    budget = budget_of(tiny_llama, settings)
    beside = workspace_bytes(generation_of(None))
    for name in ("forward", "backward"):
        phase = budget.phase(name)
        assert phase is not None
        expected = phase.allocated_bytes - beside
        assert found[name] == pytest.approx(expected, rel=0.03 if name == "backward" else 0.06), name
