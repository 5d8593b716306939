"""ZeRO traced, compared with DeepSpeed itself.

The figures are peaks of live tensors in the fourth step of DeepSpeed 0.19.6's engine, on the first of two CPU ranks
(gloo, DS_ACCELERATOR=cpu, torch 2.13): a dispatch mode counted the storages of all tensors that are not on "meta".
The optimizer was torch's AdamW with matrices and vectors in two groups, as the Trainer has them.
"""

from collections.abc import Callable
from typing import Any

import pytest

AskWorker = Callable[[dict[str, Any]], dict[str, Any]]

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 2000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
PHASES = ("forward", "backward", "optimizer step")
STAGE_3 = {
    "prefetch_bucket": 300_000,
    "max_reuse_distance": 1_000_000,
    "max_live_parameters": 2_000_000,
    "persistence_threshold": 1000,
}
Case = tuple[int, dict[str, Any], dict[str, Any], tuple[int, int, int]]
"""Stage, ZeRO's settings beside a bucket of a million elements, training settings, and DeepSpeed's own peaks."""
QUICK: list[Case] = [
    (2, {}, {"gradient_accumulation": 2}, (46_514_468, 47_024_412, 62_813_972)),
]
SLOW: list[Case] = [
    (3, {}, {}, (48_385_449, 48_895_393, 60_625_329)),
    (1, {}, {"precision": "fp32"}, (55_253_284, 67_215_384, 75_379_476)),
    (1, {"overlap_comm": True}, {"gradient_accumulation": 2}, (54_702_628, 55_212_572, 62_813_972)),
    (2, {}, {"precision": "fp32"}, (55_253_284, 59_251_228, 75_379_476)),
    (3, {"sub_group": 500_000}, {}, (48_385_461, 48_895_405, 42_488_277)),
    (3, {"max_reuse_distance": 0}, {}, (48_385_449, 48_895_393, 60_625_329)),
    (3, {"prefetch_bucket": 0}, {}, (45_354_409, 45_864_353, 60_625_329)),
    (1, {}, {}, (42_325_796, 46_173_592, 62_813_972)),
    (1, {}, {"gradient_accumulation": 2}, (52_702_628, 53_212_572, 62_813_972)),
    (2, {}, {}, (42_325_796, 42_835_740, 62_813_972)),
    (2, {}, {"activation_checkpointing": "full"}, (36_612_388, 41_867_676, 62_813_972)),
    (2, {"contiguous_gradients": False}, {}, (42_325_796, 42_835_740, 58_627_860)),
    (2, {"reduce_bucket": 300_000}, {}, (42_325_796, 42_835_740, 62_813_972)),
    (2, {"overlap_comm": True}, {}, (42_325_796, 44_787_740, 62_813_972)),
    (3, {}, {"gradient_accumulation": 2}, (48_385_449, 48_895_393, 60_625_329)),
    (3, {"reduce_bucket": 300_000}, {}, (46_985_449, 47_495_393, 59_225_329)),
]


LORA: list[tuple[int, str, tuple[int, int, int]]] = [
    (2, "none", (15_785_776, 16_230_184, 8_836_896)),
    (3, "none", (18_648_245, 19_158_189, 6_648_501)),
    (3, "full", (13_713_589, 14_223_533, 6_648_501)),
]
"""Stage, checkpointing, and DeepSpeed's own peaks with adapters of rank 8 on q_proj and v_proj."""


def trace(
    ask_worker: AskWorker, stage: int, zero: dict[str, Any], training: dict[str, Any], **others: Any
) -> dict[str, Any]:
    return ask_worker(
        {
            "op": "trace",
            "config": LLAMA,
            "training": {"micro_batch": 2, "sequence_length": 64, "precision": "bf16", **training},
            "parallel": {"strategy": f"zero{stage}", "data_shard": 2},
            "zero": {"reduce_bucket": 1_000_000, **(STAGE_3 if stage == 3 else {}), **zero},
            "optimizer": {"path": "torch.optim:AdamW", "options": {}},
            "cpu_kernels": True,
            **others,
        }
    )


@pytest.mark.parametrize(
    ("stage", "zero", "training", "real"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_a_traced_step_holds_what_deepspeeds_engine_holds(
    ask_worker: AskWorker, stage: int, zero: dict[str, Any], training: dict[str, Any], real: tuple[int, int, int]
) -> None:
    phases = trace(ask_worker, stage, zero, training)["phases"]
    assert [phases[name]["allocated"] for name in PHASES] == pytest.approx(real, rel=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "checkpointing", "real"), LORA)
def test_a_traced_step_with_adapters_does_too(
    ask_worker: AskWorker, stage: int, checkpointing: str, real: tuple[int, int, int]
) -> None:
    lora = {"rank": 8, "targets": ["q_proj", "v_proj"]}
    phases = trace(ask_worker, stage, {}, {"activation_checkpointing": checkpointing}, lora=lora)["phases"]
    assert [phases[name]["allocated"] for name in PHASES] == pytest.approx(real, rel=1e-3)


def test_stage_3_counts_gathered_weights_and_buckets_as_communication(ask_worker: AskWorker) -> None:
    components = trace(ask_worker, 3, {}, {})["phases"]["forward"]["components"]
    assert components["communication"] > 2_000_000  # the bucket, of 16-bit elements
    assert components["weights"] < 4_200_000  # a half of the 8.4 MB


def test_offloaded_optimizer_states_are_not_on_the_gpu(ask_worker: AskWorker) -> None:
    message = {
        "op": "trace",
        "config": LLAMA,
        "training": {"micro_batch": 2, "sequence_length": 64, "precision": "bf16-mixed"},
        "parallel": {"strategy": "zero2", "data_shard": 2, "cpu_offload": "optimizer"},
        "zero": {"reduce_bucket": 1_000_000},
        "cpu_kernels": True,
    }
    phases = ask_worker(message)["phases"]
    assert phases["optimizer step"]["components"]["optimizer"] == 0
    assert phases["backward"]["components"]["gradients"] < 1_100_000  # one gradient at a time
