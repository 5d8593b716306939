"""The trace from a few layers compared with the trace of all of them: equal in every event."""

from typing import Any

import pytest
from job_matrix import CELLS
from slow_cases import quick_every, slow_every

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping, with_changes
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.trace.traced_step import trace_request
from vramtop.estimator.worker.described import trace_script
from vramtop.estimator.worker.repetition.repeated_trace import TracedSteps, trace_repeated
from vramtop.estimator.worker.request.protocol import RefusedError

DEPTH_FIELDS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
DEEP = {"llama, bf16": 12, "llama, mixed adapters checkpointed": 12, "mistral, bf16 fsdp2": 17}
"""Cells with numbers of layers."""
SLOW_DEPTH = 37
TRACED_WHOLE = ("gemma3_text", "llama4_text", "olmo3", "bert", "hybrid")
"""Words of cells of which all layers may be traced: units that grow with every layer, and kinds of layers that repeat
too seldom."""


def deep_job(name: str, layers: int) -> Job:
    job = CELLS[name]
    config = job.model.config or {}
    return with_changes(job, {"model.config": config | {key: layers for key in DEPTH_FIELDS if key in config}})


def request_of(job: Job) -> dict[str, Any]:
    return trace_request(job, resolve_model(job.model))


def repeated(request: dict[str, Any]) -> TracedSteps | None:
    if request["least_rounds"] is None:
        return None
    return trace_repeated(
        lambda configs: trace_script(request["script"], configs),
        request["config"],
        request["task"],
        request["least_rounds"],
    )


def plain(traced: TracedSteps) -> dict[str, Any]:
    history = traced.history
    return {
        "counts": (traced.parameters, traced.trainable, traced.gradients),
        "records": [vars(replace(record, line="", own_line="")) for record in history.records],
        "events": history.events,
        "phases": [vars(phase) for phase in history.phases],
        "returns": history.returns,
    }


@pytest.mark.parametrize("name", quick_every(3, DEEP))
def test_repeated_layers_give_the_full_trace(name: str) -> None:
    request = request_of(deep_job(name, DEEP[name]))
    found = repeated(request)
    assert found is not None
    assert plain(found) == plain(trace_script(request["script"], [None])[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_every(6, sorted(CELLS)[::9]))  # all of them take hours
def test_repeated_layers_give_the_full_trace_over_the_matrix(name: str) -> None:
    if "flash" in name:
        pytest.importorskip("flash_attn")
    if "nf4" in name or "int8" in name:
        pytest.importorskip("bitsandbytes")
    try:
        request = request_of(deep_job(name, SLOW_DEPTH))
        whole = trace_script(request["script"], [None])[0]
    except (CannotTellError, RefusedError) as reason:
        pytest.skip(str(reason))
    found = repeated(request)
    if found is None and (request["least_rounds"] is None or any(word in name for word in TRACED_WHOLE)):
        pytest.skip("all layers are traced")
    assert found is not None
    assert plain(found) == plain(whole)


@pytest.mark.parametrize(
    ("layers", "tables"),
    [
        pytest.param(8, {}, id="few layers"),
        pytest.param(16, {"training": {"trainable": [r"layers\.1\.", r"layers\.15\."]}}, id="single layers train"),
        pytest.param(16, {"lora": {"targets": ["3.self_attn.q_proj"]}}, id="single layers have adapters"),
        pytest.param(16, {"parallel": {"strategy": "ddp", "data_replicate": 2}}, id="buckets fill across layers"),
    ],
)
def test_layers_that_differ_are_traced_one_by_one(layers: int, tables: dict[str, Any]) -> None:
    config = (CELLS["llama, bf16"].model.config or {}) | {"num_hidden_layers": layers}
    job = job_from_mapping({"model": {"config": config}, **tables}, where="test")
    assert repeated(request_of(job)) is None
