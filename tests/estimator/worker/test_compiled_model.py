"""A whole transformers model under torch.compile, traced: against torch's own min-cut partitioner on the real model."""

from typing import Any

import pytest
from partitioned_graphs import saved_bytes
from worker_requests import complete

from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.trace.traced_step import loop_request, optimizer_class
from vramtop.estimator.worker.request.protocol import UnsupportedError
from vramtop.estimator.worker.request.request import read_request
from vramtop.estimator.worker.step.supported_jobs import check_supported

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SEQUENCES, LENGTH = 2, 256
SIZES = {"hidden_size": 256, "num_attention_heads": 8, "head_dim": 32, "vocab_size": 1000, "num_hidden_layers": 2}
MODELS: list[Any] = [
    ("llama", {"num_key_value_heads": 2, "intermediate_size": 704}, {}),
    ("llama", {"num_key_value_heads": 2, "intermediate_size": 704}, {"activation_checkpointing": "full"}),
    ("llama", {"num_key_value_heads": 2, "intermediate_size": 704}, {"precision": "bf16-mixed"}),
    ("qwen3", {"num_key_value_heads": 4, "intermediate_size": 704}, {}),
    ("qwen3", {"num_key_value_heads": 4, "intermediate_size": 704}, {"precision": "bf16-mixed"}),
    ("gemma", {"num_key_value_heads": 8, "intermediate_size": 704, "hidden_activation": "gelu_pytorch_tanh"}, {}),
    ("phi3", {"num_key_value_heads": 4, "intermediate_size": 704}, {}),
]


def message_of(config: dict[str, Any], **tables: Any) -> dict[str, Any]:
    tables["training"] = {"precision": "bf16", "compile": True} | tables.get("training", {})
    job = job_from_mapping({"model": {"config": config}, **tables}, where="test")
    optimizer = optimizer_class(job)
    loop = loop_request(job, config["model_type"])
    return complete({"config": config, **tables, "optimizer": optimizer, "loop": loop})


def bytes_before_backward(message: dict[str, Any]) -> int:
    """Return what a traced step holds when its backward pass begins, beside weights and optimizer states."""
    from vramtop.estimator.worker.step.training_steps import trace_steps

    history = trace_steps(read_request(message)).history
    start = next(phase.start for phase in history.phases if (phase.step, phase.name) == (2, "backward"))
    live: set[int] = set()
    for event in history.events[:start]:
        live ^= {abs(event) - 1}
    records = (history.records[number] for number in live)
    return sum(record.nbytes for record in records if record.component in {"activations", "logits"})


@pytest.mark.slow
@pytest.mark.parametrize(("family", "sizes", "training"), MODELS)
def test_a_compiled_model_saves_what_the_partitioner_keeps(
    family: str, sizes: dict[str, Any], training: dict[str, Any]
) -> None:
    fields = {**SIZES, **sizes, "pad_token_id": 0, "tie_word_embeddings": False}
    settings = transformers.AutoConfig.for_model(family, **fields)
    model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="sdpa")
    mixed, recomputes = "precision" in training, "activation_checkpointing" in training
    if recomputes:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model = model.train() if mixed else model.train().bfloat16()
    ids = torch.zeros(SEQUENCES, LENGTH, dtype=torch.long)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
        kept = saved_bytes(model, lambda outputs: outputs.loss, input_ids=ids, labels=ids, use_cache=False)
    batch = {"micro_batch": SEQUENCES, "sequence_length": LENGTH}
    found = bytes_before_backward(message_of({"model_type": family, **fields}, training={**batch, **training}))
    # the last block's output need not be kept where the block is recomputed anyhow
    last = 2 * SEQUENCES * LENGTH * SIZES["hidden_size"] if recomputes else 0
    # nor one residual stream in fp32, of which a 16-bit product is kept instead
    last += 2 * SEQUENCES * LENGTH * SIZES["hidden_size"] if mixed else 0
    assert kept * 0.98 <= found <= kept * 1.02 + last


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed"])
def test_adapters_that_read_one_tensor_share_its_cast(precision: str) -> None:
    peft = pytest.importorskip("peft")
    targets = ["q_proj", "v_proj", "gate_proj", "down_proj"]
    fields = {**SIZES, "num_key_value_heads": 4, "intermediate_size": 704, "pad_token_id": 0}
    settings = transformers.AutoConfig.for_model("llama", **fields)
    model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="sdpa")
    mixed = precision == "bf16-mixed"
    model = model if mixed else model.bfloat16()
    model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=targets)).train()
    ids = torch.zeros(SEQUENCES, LENGTH, dtype=torch.long)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
        kept = saved_bytes(model, lambda outputs: outputs.loss, input_ids=ids, labels=ids, use_cache=False)
    training = {"micro_batch": SEQUENCES, "sequence_length": LENGTH, "precision": precision}
    config = {"model_type": "llama", **fields}
    found = bytes_before_backward(message_of(config, training=training, lora={"rank": 8, "targets": targets}))
    assert found == pytest.approx(kept, rel=0.02)


REAL_FSDP: list[Any] = [
    ("llama", {}, 15222804),
    ("llama", {"activation_checkpointing": "full"}, 2512916),
    ("qwen3", {}, 16476564),
]
"""Bytes that autograd saved, as its hooks counted them, of three blocks under torch.compile in real FSDP1 and FSDP2
units (a fake group of two ranks, torch 2.13, transformers 5.23), without parameters and random states."""


@pytest.mark.parametrize("strategy", ["fsdp1", pytest.param("fsdp2", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("family", "training", "expected"),
    [REAL_FSDP[0], *(pytest.param(*row, marks=pytest.mark.slow) for row in REAL_FSDP[1:])],
)
def test_each_block_that_fsdp_wraps_keeps_a_mask_of_its_own(
    family: str, training: dict[str, Any], expected: int, strategy: str
) -> None:
    heads = 2 if family == "llama" else 4
    fields = {**SIZES, "num_hidden_layers": 3, "num_key_value_heads": heads, "intermediate_size": 704}
    config = {"model_type": family, **fields, "pad_token_id": 0, "tie_word_embeddings": False}
    batch = {"micro_batch": SEQUENCES, "sequence_length": LENGTH}
    tables = {"training": {**batch, **training}, "parallel": {"strategy": strategy, "data_shard": 2}}
    assert bytes_before_backward(message_of(config, **tables)) == pytest.approx(expected, rel=0.005)


def test_what_no_stand_in_covers_is_refused(ask_worker: Any, tiny_llama: dict[str, Any]) -> None:
    gpt2 = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 200}
    answer = ask_worker(message_of(gpt2))
    assert answer["unsupported"] == "torch.compile of GPT2Block, which has no gated MLP, cannot be traced"
    for tables, sentence in (
        ({"parallel": {"strategy": "zero2", "data_shard": 2}}, "torch.compile under zero2 cannot be traced"),
        (
            {"parallel": {"strategy": "fsdp1", "data_shard": 2}, "lora": {"rank": 8}},
            "torch.compile under fsdp1 with units inside of blocks cannot be traced",
        ),
        ({"lora": {"quantization": "nf4"}}, "torch.compile of weights quantized to nf4 cannot be traced"),
        ({"training": {"framework": "transformers", "loss": "fused-linear"}}, "Liger-Kernel's kernels under"),
    ):
        with pytest.raises(UnsupportedError, match=sentence):
            check_supported(read_request(message_of(tiny_llama, **tables)))


@pytest.mark.parametrize(
    "tables",
    [
        {"parallel": {"strategy": "fsdp1", "data_shard": 2}, "lora": {"rank": 8}},
        {"parallel": {"strategy": "zero2", "data_shard": 2}},
        {"parallel": {"tensor": 2}, "training": {"framework": "torchtitan"}},
        {"lora": {"quantization": "nf4"}},
        {"training": {"framework": "litgpt"}},
    ],
)
def test_what_is_compiled_and_not_traced_has_a_wider_range(tiny_llama: dict[str, Any], tables: dict[str, Any]) -> None:
    from vramtop.estimator.estimation import estimate

    widths = []
    for compiles in (False, True):
        training = {"precision": "bf16", **tables.get("training", {}), "compile": compiles}
        job = job_from_mapping({"model": {"config": tiny_llama}, **tables, "training": training}, where="test")
        if compiles:
            with pytest.raises(UnsupportedError, match="cannot be traced"):
                check_supported(read_request(message_of(tiny_llama, **tables)))
        span = estimate(job, method="formula").peak.allocated_range
        widths.append((span.high_bytes - span.low_bytes) / span.high_bytes)
    assert widths[1] > widths[0]
