"""The closed form against the trace: families x precision x optimizer x sharding x adapters x tasks x attention.

The tests run a part of the matrix. ``python tests/estimator/test_closed_form_matrix.py [WORD ...]`` runs all of it,
or the cells that have all the words in their names, and prints how far off the closed form is.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file import job_from_mapping
from vramtop.estimator.model.families.registry import FAMILIES
from vramtop.estimator.trace.worker_pool import keep_idle_workers

CLOSE = 0.03
"""Maximum relative error of the allocated bytes, in every phase."""

RESERVED_CLOSE = 0.08
"""Maximum relative error of the reserved bytes, which both replay, the trace the real step's allocations."""

_H: dict[str, Any] = {
    "hidden_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "intermediate_size": 5632,
    "vocab_size": 32000,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = _H | {"num_key_value_heads": 4}
_HEADS = _GROUPED | {"head_dim": 128}
_LONG = {"max_position_embeddings": 8194, "intermediate_size": 8192}
_MOE = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 768}
_T5 = {"d_model": 2048, "num_layers": 3, "num_heads": 16, "vocab_size": 32000, "decoder_start_token_id": 0}
_LATENT = {
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 16,
    "n_shared_experts": 2,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 704,
    "first_k_dense_replace": 1,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _GROUPED,
    "qwen2": _GROUPED,
    "qwen3": _HEADS,
    "mistral": _GROUPED,
    "mixtral": _GROUPED | {"num_local_experts": 8, "intermediate_size": 2816},
    "qwen2_moe": _GROUPED | _MOE | {"shared_expert_intermediate_size": 1536},
    "qwen3_moe": _HEADS | _MOE,
    "gemma": _HEADS,
    "gemma2": _HEADS,
    "gemma3_text": _HEADS,
    "phi": _H,
    "phi3": _GROUPED,
    "gpt_neox": _H,
    "gpt2": {"n_embd": 2048, "n_layer": 4, "n_head": 16, "vocab_size": 32000, "n_positions": 8192},
    "bert": _H | _LONG,
    "roberta": _H | _LONG,
    "distilbert": {
        "dim": 2048,
        "n_layers": 4,
        "n_heads": 16,
        "hidden_dim": 8192,
        "vocab_size": 32000,
        "max_position_embeddings": 8192,
    },
    "t5": _T5 | {"d_kv": 128, "d_ff": 5632},
    "olmo2": _GROUPED,
    "gpt_oss": _HEADS | {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 1024},
    "deepseek_v2": _H | _LATENT,
    "deepseek_v3": _H | _LATENT | {"n_shared_experts": 1, "n_group": 4, "topk_group": 2},
}

_BF16 = {"precision": "bf16", "sequence_length": 1024, "micro_batch": 2}
_MIXED = _BF16 | {"precision": "bf16-mixed"}
_FP32 = _BF16 | {"precision": "fp32"}
_CHECKPOINTED = {"activation_checkpointing": "full"}
_FSDP = {"strategy": "fsdp2", "data_shard": 8}
_HSDP = {"strategy": "fsdp2", "data_shard": 4, "data_replicate": 2}
_DDP = {"strategy": "ddp", "data_replicate": 4}
_ADAPTERS = {"rank": 16, "targets": "all-linear"}
SETTINGS: dict[str, dict[str, Any]] = {
    "bf16": {"training": _BF16},
    "fp32": {"training": _FP32},
    "mixed": {"training": _MIXED},
    "fp16-mixed": {"training": _MIXED | {"precision": "fp16-mixed"}},
    "bf16 fused": {"training": _BF16 | {"optimizer": "adamw-fused"}},
    "bf16 momentum": {"training": _BF16 | {"optimizer": "sgd-momentum"}},
    "bf16 adafactor": {"training": _BF16 | {"optimizer": "adafactor"}},
    "mixed sgd": {"training": _MIXED | {"optimizer": "sgd"}},
    "bf16 checkpointed": {"training": _BF16 | _CHECKPOINTED},
    "mixed checkpointed": {"training": _MIXED | _CHECKPOINTED},
    "mixed accumulated": {"training": _MIXED | {"gradient_accumulation": 4}},
    "mixed 8 x 128": {"training": _MIXED | {"micro_batch": 8, "sequence_length": 128}},
    "mixed 1 x 8192": {"training": _MIXED | {"micro_batch": 1, "sequence_length": 8192}},
    "bf16 eager": {"training": _BF16, "model": {"attention": "eager"}},
    "mixed eager": {"training": _MIXED, "model": {"attention": "eager"}},
    "bf16 flash": {"training": _BF16, "model": {"attention": "flash_attention_2"}},
    "bf16 adapters": {"training": _BF16, "lora": _ADAPTERS},
    "mixed adapters checkpointed": {"training": _MIXED | _CHECKPOINTED, "lora": _ADAPTERS},
    "mixed ddp": {"training": _MIXED, "parallel": _DDP},
    "bf16 fsdp2": {"training": _BF16, "parallel": _FSDP},
    "mixed fsdp2": {"training": _MIXED, "parallel": _FSDP},
    "mixed fsdp2 kept": {"training": _MIXED, "parallel": _FSDP | {"reshard_after_forward": False}},
    "mixed fsdp2 checkpointed": {"training": _MIXED | _CHECKPOINTED, "parallel": _FSDP},
    "mixed fsdp2 accumulated": {"training": _MIXED | {"gradient_accumulation": 4}, "parallel": _FSDP},
    "mixed fsdp2 offloaded": {"training": _MIXED, "parallel": _FSDP | {"cpu_offload": "all"}},
    "mixed fsdp2 adapters": {"training": _MIXED, "parallel": _FSDP, "lora": _ADAPTERS},
    "bf16 fsdp2 one unit": {"training": _BF16, "parallel": _FSDP | {"fsdp_units": "model"}},
    "mixed fsdp2 one unit": {"training": _MIXED, "parallel": _FSDP | {"fsdp_units": "model"}},
    "mixed fsdp2 blocks": {"training": _MIXED, "parallel": _FSDP | {"fsdp_units": "blocks"}},
    "mixed hsdp": {"training": _MIXED, "parallel": _HSDP},
    "bf16 tensor": {"training": _BF16, "parallel": {"tensor": 4}},
    "mixed sequences": {"training": _MIXED, "model": {"task": "sequence-classification"}},
    "fp32 tokens": {"training": _FP32, "model": {"task": "token-classification"}},
}
ONLY_EAGER = ("gemma2", "gpt_oss")
"""Families without sdpa in transformers."""

PART = {
    "llama": ("mixed fsdp2 kept", "mixed fsdp2 one unit", "bf16 tensor", "bf16 adafactor", "mixed 8 x 128"),
    "qwen2": ("mixed sequences", "bf16 fsdp2"),
    "qwen3": ("mixed fsdp2 checkpointed", "bf16 flash"),
    "mistral": ("mixed 1 x 8192",),
    "mixtral": ("mixed", "mixed fsdp2", "bf16 adapters"),
    "qwen3_moe": ("bf16", "mixed fsdp2"),
    "gemma": ("mixed accumulated", "mixed fsdp2"),
    "gemma2": ("mixed",),
    "gemma3_text": ("mixed", "mixed fsdp2 offloaded"),
    "phi": ("mixed fsdp2",),
    "phi3": ("bf16 tensor", "mixed hsdp"),
    "gpt_neox": ("mixed fsdp2",),
    "gpt2": ("mixed eager", "mixed fsdp2"),
    "bert": ("mixed fsdp2", "bf16 eager"),
    "roberta": ("fp32 tokens",),
    "distilbert": ("mixed ddp",),
    "t5": ("fp32", "mixed", "bf16 eager", "mixed fsdp2 accumulated"),
    "olmo2": ("bf16",),
    "gpt_oss": ("mixed", "bf16 fsdp2"),
    "deepseek_v2": ("mixed checkpointed",),
    "deepseek_v3": ("bf16",),
}
"""Cells that the tests run."""
QUICK = (
    "llama, mixed fsdp2 kept",
    "llama, bf16 tensor",
    "qwen3, mixed fsdp2 checkpointed",
    "mixtral, bf16 adapters",
    "gemma2, mixed",
    "gpt2, mixed eager",
    "bert, mixed fsdp2",
    "t5, mixed",
    "deepseek_v3, bf16",
)
"""Cells that every test run includes."""


def cells() -> Iterator[tuple[str, Job]]:
    """Yield every cell of the matrix that is a valid job, with its name."""
    for family, config in CONFIGS.items():
        for setting, tables in SETTINGS.items():
            model = {"task": FAMILIES[family].tasks[0], **tables.get("model", {})}
            known = FAMILIES[family].tasks, FAMILIES[family].without_head
            if model["task"] not in known[0] or model["task"] in known[1]:
                continue
            if family in ONLY_EAGER:
                model.setdefault("attention", "eager")
            model["config"] = {"model_type": family, **config}
            yield f"{family}, {setting}", job_from_mapping({**tables, "model": model}, where=family)


CELLS = dict(cells())
PART_NAMES = [f"{family}, {setting}" for family, settings in PART.items() for setting in settings]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PART_NAMES]
)
def test_closed_form_and_trace_agree(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    formula, trace = estimate(CELLS[name]), estimate(CELLS[name], method="traced", python=sys.executable)
    assert formula.peak.allocated_bytes == pytest.approx(trace.peak.allocated_bytes, rel=CLOSE)
    assert formula.peak.low_bytes <= trace.peak.device_bytes <= formula.peak.high_bytes
    assert formula.peak.reserved_bytes == pytest.approx(trace.peak.reserved_bytes, rel=RESERVED_CLOSE)
    for component, error in _errors(formula, trace).items():
        assert abs(error) <= CLOSE, component  # two errors that cancel are errors


def _errors(formula: Budget, trace: Budget) -> dict[str, float]:
    """Return the closed form's error by component at the trace's peak, relative to all allocated bytes."""
    same = formula.phase(trace.peak.phase)
    assert same is not None
    ours, theirs = dict(same.components.items()), dict(trace.peak.components.items())
    return {name: (ours[name] - size) / trace.peak.allocated_bytes for name, size in theirs.items()}


def main(words: list[str]) -> None:
    """Print the errors at the peak over the whole matrix, worst first, and their distribution."""
    rows = []
    keep_idle_workers()
    for name, job in CELLS.items():
        if all(word in name for word in words):
            try:
                trace = estimate(job, method="traced", python=sys.executable)
            except CannotTellError as reason:
                print(f"{name}: {reason}")
                continue
            formula = estimate(job)
            inside = formula.peak.low_bytes <= trace.peak.device_bytes <= formula.peak.high_bytes
            worst = max(_errors(formula, trace).items(), key=lambda item: abs(item[1]))
            rows.append((formula.peak.allocated_bytes / trace.peak.allocated_bytes - 1, inside, worst, name))
    rows.sort(key=lambda row: -abs(row[0]))
    for error, inside, (component, share), name in rows:
        print(f"{error:+7.1%} {'in ' if inside else 'out'} {component:>13} {share:+6.1%}  {name}")
    off = sorted(abs(row[0]) for row in rows)
    close, within = sum(error <= CLOSE for error in off), sum(row[1] for row in rows)
    print(f"{len(off)} cells: median {off[len(off) // 2]:.2%}, 90 % {off[len(off) * 9 // 10]:.1%}, worst {off[-1]:.1%}")
    print(f"within {CLOSE:.0%}: {close / len(off):.0%}; in the stated range: {within / len(off):.0%}")


if __name__ == "__main__":
    main(sys.argv[1:])
