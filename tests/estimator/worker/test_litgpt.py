"""LitGPT's model and loss, traced: against LitGPT's own code on the CPU, and the closed form, read from it by hand."""

from collections.abc import Callable
from typing import Any

import pytest
from worker_requests import complete

from vramtop.estimator.budget import Budget
from vramtop.estimator.formula.rank_memory import workspace_bytes
from vramtop.estimator.job.gpu_catalogue import generation_of
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.trace.traced_step import loop_request, trace_request

torch = pytest.importorskip("torch")

Estimate = Callable[..., Budget]
SEQUENCES, LENGTH = 2, 256
SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "intermediate_size": 352,
    "max_position_embeddings": 512,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "gemma": {"num_key_value_heads": 1, "head_dim": 32},
    "phi": {"partial_rotary_factor": 0.5},
    "gpt_neox": {"rotary_pct": 0.25},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 32},
}
EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
REAL: list[Any] = [
    ("0.5.13", "llama", None, (17061376, 15016960, 17058816)),
    ("0.5.13", "llama", ["q_proj", "v_proj"], (12848128, 11827712, 13870592)),
    ("0.5.13", "llama", EVERY, (16893952, 15873536, 17916416)),
    ("0.5.13", "gemma", None, (17061888, 15017472, 17059328)),
    ("0.5.13", "phi", None, (12136448, 10092032, 12133888)),
    ("0.5.13", "phi", ["q_proj", "v_proj"], (10122240, 9101824, 11144704)),
    ("0.5.13", "gpt_neox", ["q_proj", "v_proj"], (10126336, 9105920, 11148800)),
    ("0.5.13", "qwen3", None, (19460608, 17416192, 19458048)),
    ("0.4.13", "llama", ["q_proj", "v_proj"], (12843520, 11823104, 13865984)),
    ("0.4.13", "gemma", None, (17258496, 15214080, 17255936)),
    ("0.4.13", "gemma", ["q_proj", "v_proj"], (12941824, 11921408, 13964288)),
]
"""Bytes beside the weights that LitGPT's own modules and ``chunked_cross_entropy`` took in bf16, as ``StorageCounter``
counted them (torch 2.13, on a CPU): the forward pass at its highest and at its end, and the backward pass."""


QUICK = (1, 4, 10)


def request_of(family: str, targets: list[str] | None, version: str) -> Any:
    from vramtop.estimator.worker.request.request import read_request

    lora = {} if targets is None else {"lora": {"rank": 8, "targets": targets}}
    training = {"framework": "litgpt", "precision": "bf16", "micro_batch": SEQUENCES, "sequence_length": LENGTH}
    config = {"model_type": family, **SIZES, **FAMILIES[family]}
    tables = {"model": {"config": config}, "training": training, "software": {"litgpt": version}, **lora}
    job = job_from_mapping(tables, where="test")
    return read_request(trace_request(job, resolve_model(job.model)))


@pytest.mark.parametrize(
    ("version", "family", "targets", "expected"),
    [row if number in QUICK else pytest.param(*row, marks=pytest.mark.slow) for number, row in enumerate(REAL)],
)
def test_the_model_takes_what_litgpts_own_takes(
    version: str, family: str, targets: list[str] | None, expected: tuple[int, int, int]
) -> None:
    from storage_counter import StorageCounter

    from vramtop.estimator.worker.loops.litgpt import build_litgpt, litgpt_loss

    request = request_of(family, targets, version)
    model = build_litgpt(request, torch.bfloat16)
    with StorageCounter() as counter:
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            tensor.data.zero_()
            if not name.endswith("_lora_ind"):  # which LitGPT makes in the first step
                counter.count(tensor)
        batch = {name: torch.zeros(SEQUENCES, LENGTH, dtype=torch.long) for name in ("input_ids", "labels")}
        for tensor in batch.values():
            counter.count(tensor)
        start, variables = counter.live, [None]  # which hold the logits through the backward pass
        loss = litgpt_loss(model, batch, request, variables)
        forward, kept = counter.peak - start, counter.live - start
        counter.reset_peak()
        loss.backward()
        found = forward, kept, counter.peak - start
    assert found == pytest.approx(expected, rel=0.002)


JOBS: list[Any] = [
    ({"loss": "chunked"}, {"lora": {"rank": 8}}),
    *(
        pytest.param(*tables, marks=pytest.mark.slow)
        for tables in (
            ({"loss": "chunked"}, {}),
            ({"loss": "chunked", "precision": "bf16-mixed"}, {"lora": {"rank": 8, "targets": EVERY}}),
            ({"loss": "chunked"}, {"lora": {"rank": 8, "quantization": "nf4"}}),
            (
                {"loss": "chunked", "activation_checkpointing": "full"},
                {"parallel": {"strategy": "fsdp1", "data_shard": 4}},
            ),
            ({"loss": "chunked"}, {"parallel": {"strategy": "ddp", "data_replicate": 2}}),
        )
    ),
]


@pytest.mark.parametrize(("training", "tables"), JOBS)
def test_a_traced_step_takes_what_the_closed_form_counts(
    ask_worker: Any, budget_of: Estimate, tiny_llama: dict[str, Any], training: dict[str, Any], tables: dict[str, Any]
) -> None:
    tables = {"training": {"framework": "litgpt", "precision": "bf16", "micro_batch": 2, **training}, **tables}
    job = job_from_mapping({"model": {"config": tiny_llama}, **tables}, where="test")
    answer = ask_worker(trace_request(job, resolve_model(job.model)))
    assert "unsupported" not in answer, answer
    settings = {f"{table}.{key}": value for table, fields in tables.items() for key, value in fields.items()}
    budget, beside = budget_of(tiny_llama, settings), workspace_bytes(generation_of(None))
    peaks = [phase.allocated_bytes - beside for phase in budget.phases]
    assert max(phase["allocated"] for phase in answer["phases"].values()) == pytest.approx(max(peaks), rel=0.03)


def test_what_is_unknown_of_litgpt_is_named(tiny_llama: dict[str, Any]) -> None:
    from vramtop.estimator.worker.loops.litgpt import read_sizes
    from vramtop.estimator.worker.request.protocol import UnsupportedError
    from vramtop.estimator.worker.request.request import read_request
    from vramtop.estimator.worker.step.supported_jobs import check_supported

    with pytest.raises(UnsupportedError, match="LitGPT's model of the type olmo cannot be traced, only those of"):
        read_sizes({"model_type": "olmo"})
    for training, words in (
        ({"compile": True}, "torch.compile of LitGPT's model"),
        ({"mode": "inference"}, "LitGPT's inference"),
    ):
        tables = {"training": {"framework": "litgpt", "loss": "chunked", **training}}
        job = job_from_mapping({"model": {"config": tiny_llama}, **tables}, where="test")
        message = {"op": "trace", "config": tiny_llama, **tables, "loop": loop_request(job, "llama")}
        message["optimizer"] = {"path": "torch.optim:AdamW", "options": {}}
        with pytest.raises(UnsupportedError, match=words):
            check_supported(read_request(complete(message)))
