"""The trace from a few layers compared with the trace of all of them: equal in every event."""

from typing import Any

import pytest
from job_matrix import CELLS
from slow_cases import quick_every, slow_every

from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.trace.traced_step import trace_request
from vramtop.estimator.worker.repetition import trace_repeated
from vramtop.estimator.worker.request.protocol import RefusedError, UnsupportedError
from vramtop.estimator.worker.request.request import Request, changed, read_request
from vramtop.estimator.worker.step.supported_jobs import check_supported
from vramtop.estimator.worker.step.training_steps import TracedSteps, trace_steps

DEPTH_FIELDS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
QUICK = {"llama, mixed adapters checkpointed": 12, "mistral, bf16 fsdp2": 17}
"""Cells that every test run includes, with numbers of layers."""
SLOW_DEPTH = 44
TRACED_WHOLE = ("one unit", "fsdp1", "hybrid", "gpt_oss", "gemma3_text", "moe, nf4 mixed")
"""Words of cells of which all layers may be traced: units that grow with every layer, or wait for the GPU in another
order with every layer (experts under FSDP1), and kinds of layers that repeat too seldom. Of the last one the cause is
not known."""
WAITING = (
    "llama, bf16 fsdp1",
    "llama, mixed fsdp1",
    "llama, mixed fsdp1 kept",
    "llama, mixed fsdp1 checkpointed",
    "llama, mixed fsdp1 accumulated",
    "llama, mixed fsdp1 no prefetch",
    "llama, mixed fsdp1 offloaded",
    "llama, mixed fsdp1 copies",
    "llama, mixed hybrid",
    "gpt2, mixed fsdp1",
)
"""Cells whose units wait for the GPU (``record_stream``): their layers repeat once there are enough of them."""
WAITING_DEPTH = 37
LLAMA = CELLS["llama, bf16"].model.config or {}


def deep_request(name: str, layers: int) -> Request:
    job = CELLS[name]
    request = read_request(trace_request(job, resolve_model(job.model)))
    return changed(request, config=request.config | {key: layers for key in DEPTH_FIELDS if key in request.config})


def request_of(config: dict[str, Any], **tables: Any) -> Request:
    job = job_from_mapping({"model": {"config": config}, **tables}, where="test")
    return read_request(trace_request(job, resolve_model(job.model)))


def plain(traced: TracedSteps) -> dict[str, Any]:
    history = traced.history
    return {
        "counts": (traced.parameters, traced.trainable, traced.gradients),
        "records": [vars(record) for record in history.records],
        "events": history.events,
        "phases": [vars(phase) for phase in history.phases],
    }


@pytest.mark.parametrize("name", quick_every(2, QUICK))
def test_repeated_layers_give_the_full_trace(name: str) -> None:
    request = deep_request(name, QUICK[name])
    repeated = trace_repeated(request)
    assert repeated is not None
    assert plain(repeated) == plain(trace_steps(request))


@pytest.mark.slow
def test_gradients_are_views_of_buckets_where_few_layers_are_traced() -> None:
    parallel = {"strategy": "ddp", "data_replicate": 2, "gradient_as_bucket_view": True}
    request = request_of(LLAMA | {"num_hidden_layers": 12}, training={"precision": "bf16"}, parallel=parallel)
    repeated = trace_repeated(request)
    assert repeated is not None
    assert plain(repeated) == plain(trace_steps(request))
    held = [record.component for record in repeated.history.records]
    assert "gradients" in held
    assert "communication" not in held


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(CELLS)[::12])  # all of them take hours
def test_repeated_layers_give_the_full_trace_over_the_matrix(name: str) -> None:
    request = deep_request(name, SLOW_DEPTH)
    try:
        check_supported(request)
        full = trace_steps(request)
    except (UnsupportedError, RefusedError) as reason:
        pytest.skip(str(reason))
    repeated = trace_repeated(request)
    if repeated is None and any(word in name for word in TRACED_WHOLE):
        pytest.skip("all layers are traced")
    assert repeated is not None
    assert plain(repeated) == plain(full)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_every(4, WAITING))
def test_repeated_layers_under_fsdp1_give_the_full_trace(name: str) -> None:
    request = deep_request(name, WAITING_DEPTH)
    repeated = trace_repeated(request)
    assert repeated is not None
    full = trace_steps(request)
    assert plain(repeated) == plain(full)
    assert repeated.history.returns == full.history.returns


@pytest.mark.parametrize(
    ("changes", "tables"),
    [
        pytest.param({"num_hidden_layers": 8}, {}, id="few layers"),
        pytest.param({}, {"training": {"trainable": [r"layers\.1\.", r"layers\.15\."]}}, id="single layers train"),
        pytest.param({}, {"lora": {"rank": 8, "targets": ["3.self_attn.q_proj"]}}, id="single layers have adapters"),
    ],
)
def test_layers_that_differ_are_traced_one_by_one(changes: dict[str, Any], tables: dict[str, Any]) -> None:
    assert trace_repeated(request_of(LLAMA | {"num_hidden_layers": 16} | changes, **tables)) is None
