"""The traced step compared with real training steps on a CPU, measured by an independent counter.

The trace runs in a worker process with fake tensors, the real steps run here. Here both allocate as a CPU does
(``cpu_kernels``); the imitated CUDA kernels are tested by the difference that they make.
"""

import contextlib
from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
import transformers
from accelerate.utils.operations import convert_outputs_to_fp32
from pinned_versions import needs_pinned_transformers, other_version
from storage_counter import StorageCounter

from vramtop.estimator.job.rules.optimizers.optimizer import Full, Optimizer
from vramtop.estimator.job.rules.optimizers.table import OPTIMIZERS
from vramtop.estimator.model.read_architecture import count_parameters, read_architecture

DROPLESS = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen3": LLAMA | {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True},
    "gemma3": LLAMA | {"model_type": "gemma3_text", "head_dim": 32, "sliding_window": 64},
    "mixtral": LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 128,
        "n_layer": 3,
        "n_head": 8,
        "n_positions": 256,
        "vocab_size": 1000,
        **DROPLESS,
    },
    "bert": {
        "model_type": "bert",
        "vocab_size": 1000,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "attention_probs_dropout_prob": 0.0,
        "hidden_dropout_prob": 0.0,
    },
}
HEADS = {"bert": "masked-lm"}
MODELS = {"causal-lm": transformers.AutoModelForCausalLM, "masked-lm": transformers.AutoModelForMaskedLM}
DTYPES = {"bf16": torch.bfloat16}
SHAPE = {"micro_batch": 2, "sequence_length": 256}
BATCH, LENGTH = 2, 256
PHASES = ("forward", "backward", "optimizer step")

AskWorker = Callable[[dict[str, Any]], dict[str, Any]]
Trace = Callable[..., dict[str, Any]]


@pytest.fixture
def trace(ask_worker: AskWorker) -> Trace:
    """Return the answer for a config and training settings; tables and switches by name."""

    def ask(config: dict[str, Any], training: dict[str, Any] | None = None, **others: Any) -> dict[str, Any]:
        return ask_worker({"op": "trace", "config": config, "training": SHAPE | (training or {}), **others})

    return ask


def count_real_steps(config: dict[str, Any], task: str, training: dict[str, Any]) -> dict[str, int]:
    """Peaks of the second of two real steps, as a loop around transformers and accelerate takes them."""
    fields = dict(config)
    made = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    made.use_cache = False
    model = MODELS[task].from_config(made, dtype=DTYPES.get(training["precision"], torch.float32))
    model.train()
    if training.get("activation_checkpointing") == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    in_backward = training.get("optimizer_in_backward")
    optimizer = None if in_backward else torch.optim.AdamW(model.parameters(), foreach=True)
    if in_backward:
        step_in_backward(model)
    low = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}.get(training["precision"])
    scaler = torch.amp.GradScaler("cpu", enabled=low == torch.float16)
    peaks = {}
    with StorageCounter() as counter:
        for tensor in (*model.parameters(), *model.buffers()):
            counter.count(tensor)
        for _ in range(2):
            for _ in range(training.get("gradient_accumulation", 1)):
                counter.reset_peak()
                ids, labels = (torch.randint(0, made.vocab_size, (BATCH, LENGTH)) for _ in range(2))
                with torch.autocast("cpu", dtype=low) if low else contextlib.nullcontext():
                    outputs = model(input_ids=ids, labels=labels)
                loss = scaler.scale((convert_outputs_to_fp32(dict)(outputs) if low else outputs)["loss"])
                del outputs, ids, labels
                peaks["forward"] = counter.peak
                counter.reset_peak()
                loss.backward()
                del loss
                peaks["backward"] = counter.peak
            counter.reset_peak()
            if optimizer is not None:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
                scaler.step(optimizer)
                scaler.update()
            peaks["optimizer step"] = counter.peak
            model.zero_grad()
    return peaks


def step_in_backward(model: torch.nn.Module) -> None:
    optimizers = {parameter: torch.optim.AdamW([parameter], foreach=True) for parameter in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)


def case_name(family: str, training: dict[str, Any]) -> str:
    return f"{family}-{'-'.join(map(str, training.values()))}"


QUICK_CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"precision": "bf16-mixed"}),
    ("llama", {"precision": "bf16-mixed", "activation_checkpointing": "full"}),
    ("llama", {"precision": "fp32", "gradient_accumulation": 2}),
    ("qwen3", {"precision": "bf16", "optimizer_in_backward": True}),
]
SLOW_CASES: list[tuple[str, dict[str, Any]]] = [
    *[(family, {"precision": precision}) for family in CONFIGS for precision in ("fp32", "bf16-mixed")],
    ("llama", {"precision": "fp16-mixed"}),
    ("gpt2", {"precision": "fp16-mixed"}),
    ("llama", {"precision": "bf16"}),
    ("mixtral", {"precision": "bf16"}),
    ("gpt2", {"precision": "fp32", "activation_checkpointing": "full"}),
    ("llama", {"precision": "fp32", "optimizer_in_backward": True}),
]
CASES = [
    *[pytest.param(*case, id=case_name(*case)) for case in QUICK_CASES],
    *[
        pytest.param(*case, id=case_name(*case), marks=pytest.mark.slow)
        for case in SLOW_CASES
        if case not in QUICK_CASES
    ],
]


@pytest.mark.parametrize(("family", "training"), CASES)
def test_equal_to_real_steps_within_one_per_cent(trace: Trace, family: str, training: dict[str, Any]) -> None:
    task = HEADS.get(family, "causal-lm")
    answer = trace(CONFIGS[family], training, task=task, cpu_kernels=True)
    if "unsupported" in answer and other_version(["transformers"]):
        pytest.skip(answer["unsupported"])
    counted = count_real_steps(CONFIGS[family], task, training)
    assert {name: answer["phases"][name]["allocated"] for name in PHASES} == pytest.approx(counted, rel=0.01)


def test_components_sum_to_what_is_allocated(trace: Trace) -> None:
    answer = trace(LLAMA, {"precision": "bf16-mixed"})
    bytes_of_weights = 4 * answer["parameters"]
    for phase in answer["phases"].values():
        assert sum(phase["components"].values()) == phase["allocated"]
        assert phase["components"]["weights"] == pytest.approx(bytes_of_weights, rel=0.01)
    step = answer["phases"]["optimizer step"]["components"]
    assert step["gradients"] == pytest.approx(bytes_of_weights, rel=0.01)
    assert step["optimizer"] == pytest.approx(2 * bytes_of_weights, rel=0.01)
    assert step["activations"] == step["logits"] == 0
    tokens = BATCH * LENGTH
    assert answer["phases"]["forward"]["components"]["logits"] == pytest.approx((2 + 4 + 4) * tokens * 1000, rel=0.02)


def test_peak_has_its_largest_tensors_and_a_timeline(trace: Trace) -> None:
    answer = trace(LLAMA, {"precision": "fp32"})
    tensors = answer["peak_tensors"]
    peak = max(phase["allocated"] for phase in answer["phases"].values())

    assert len(tensors) == 20
    assert [tensor["bytes"] for tensor in tensors] == sorted((t["bytes"] for t in tensors), reverse=True)
    assert all(tensor["bytes"] >= 4 * prod(tensor["shape"]) for tensor in tensors if tensor["dtype"] == "float32")
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= {tensor["module"] for tensor in tensors}
    assert len(answer["timeline"]) <= 500
    assert max(allocated for _, allocated in answer["timeline"]) == peak
    by_component = zip(*answer["timeline_components"].values(), strict=True)
    assert [sum(parts) for parts in by_component] == [allocated for _, allocated in answer["timeline"]]
    assert [name for name, _ in answer["timeline_phases"]] == list(PHASES)
    assert peak <= answer["reserved"]["peak"] < 2 * peak
    assert max(reserved for _, reserved in answer["reserved"]["timeline"]) == answer["reserved"]["peak"]


def test_the_allocators_settings_and_the_gpus_size_are_used(trace: Trace) -> None:
    training = {"sequence_length": 2000}
    free = trace(LLAMA, training)["reserved"]
    full = trace(LLAMA, training, allocator={"capacity_bytes": free["peak"] // 2})["reserved"]
    growing = trace(LLAMA, training, allocator={"conf": "expandable_segments:True"})["reserved"]

    assert free["out_of_memory"] is None
    assert "out of memory" in full["out_of_memory"]
    assert growing["peak"] < free["peak"]


def test_adapters_alone_have_gradients_and_states(trace: Trace) -> None:
    answer = trace(LLAMA, {"precision": "bf16"}, lora={"rank": 4, "targets": ["q_proj", "v_proj"]})
    assert answer["trainable"] == 3 * 4 * ((128 + 128) + (128 + 32))
    step = answer["phases"]["optimizer step"]["components"]
    assert step["gradients"] == pytest.approx(4 * answer["trainable"], rel=0.15)  # small tensors, whole blocks
    assert step["weights"] == pytest.approx(2 * answer["parameters"] + 2 * answer["trainable"], rel=0.02)
    full = trace(LLAMA, {"precision": "bf16"})
    assert answer["phases"]["forward"]["allocated"] < full["phases"]["forward"]["allocated"]


def test_checkpointing_keeps_one_tensor_per_layer(trace: Trace) -> None:
    deep = LLAMA | {"num_hidden_layers": 12}
    kept, recomputed = (
        trace(deep, {"precision": "bf16", "activation_checkpointing": choice})["phases"] for choice in ("none", "full")
    )
    boundary = 2 * BATCH * LENGTH * 128
    assert recomputed["forward"]["components"]["activations"] == pytest.approx(14 * boundary, rel=0.25)
    assert recomputed["forward"]["components"]["activations"] < kept["forward"]["components"]["activations"] / 8
    assert recomputed["optimizer step"] == kept["optimizer step"]


def test_accumulated_gradients_live_through_the_next_forward_pass(trace: Trace) -> None:
    once, often = (trace(LLAMA, {"precision": "fp32", "gradient_accumulation": n})["phases"] for n in (1, 8))
    assert once["forward"]["components"]["gradients"] == 0
    assert often["forward"]["components"]["gradients"] == often["optimizer step"]["components"]["gradients"] > 0


def test_fsdp2_holds_an_eighth_of_every_state(trace: Trace) -> None:
    parallel = {"strategy": "fsdp2", "data_shard": 8}
    answer = trace(LLAMA, {"precision": "bf16-mixed"}, parallel=parallel)
    step, eighth = answer["phases"]["optimizer step"]["components"], 4 * answer["parameters"] / 8

    assert answer["phases"]["loading"]["components"]["weights"] == pytest.approx(eighth, rel=0.03)
    assert step["gradients"] == pytest.approx(eighth, rel=0.03)
    assert step["optimizer"] == pytest.approx(2 * eighth, rel=0.03)
    assert answer["phases"]["backward"]["components"]["communication"] > 0
    assert step["communication"] == 0


@pytest.mark.parametrize("family", ["qwen3", "bert", "gpt2"])
def test_fsdp2_keeps_tied_weights_tied(trace: Trace, family: str) -> None:
    """The embedding is the head, and BERT's is inside a module that counts as a block."""
    answer = trace(
        CONFIGS[family],
        {"precision": "fp32"},
        task=HEADS.get(family, "causal-lm"),
        parallel={"strategy": "fsdp2", "data_shard": 4},
    )
    weights = answer["phases"]["loading"]["components"]["weights"]
    assert weights == pytest.approx(answer["parameters"], rel=0.05)  # a quarter of four bytes each; whole blocks


def test_tensor_parallelism_keeps_tied_weights_tied(trace: Trace) -> None:
    answer = trace(CONFIGS["qwen3"], {"precision": "bf16"}, parallel={"tensor": 2})
    weights = answer["phases"]["loading"]["components"]["weights"]
    assert weights == pytest.approx(answer["parameters"], rel=0.05)  # half of two bytes each


@pytest.mark.slow
def test_fsdp2_variants(trace: Trace) -> None:
    deep = LLAMA | {"num_hidden_layers": 8, "vocab_size": 100}
    training = {"precision": "bf16", "activation_checkpointing": "full", "micro_batch": 1, "sequence_length": 32}

    def phases(**changes: Any) -> dict[str, Any]:
        phases: dict[str, Any] = trace(
            deep, training, parallel={"strategy": "fsdp2", "data_shard": 8, "reduce_dtype": "bf16"} | changes
        )["phases"]
        return phases

    usual, kept = phases(), phases(reshard_after_forward=False)
    layer = 2 * (4 * 128 * 128 * 5 // 8 + 3 * 128 * 352 + 256)
    gathered = [case["forward"]["components"]["communication"] for case in (usual, kept)]
    assert gathered[0] < 4 * layer < 8 * layer < gathered[1]
    assert phases(data_replicate=2)["optimizer step"]["components"]["optimizer"] == pytest.approx(
        usual["optimizer step"]["components"]["optimizer"]
    )


def test_offload_keeps_the_units_in_use_on_the_gpu(trace: Trace) -> None:
    """Late in a block's backward pass: its weights and most of its gradients, the next one's weights, gathered in one
    piece ahead of time, and the block before's gradients, still being reduced."""
    deep = LLAMA | {"num_hidden_layers": 8, "vocab_size": 100}
    training = {"precision": "bf16", "activation_checkpointing": "full", "micro_batch": 1, "sequence_length": 32}
    parallel = {"strategy": "fsdp2", "data_shard": 8, "reduce_dtype": "bf16", "cpu_offload": "all"}
    phases = trace(deep, training, parallel=parallel)["phases"]
    block = 2 * (2 * 128 * 128 + 2 * 128 * 32 + 3 * 128 * 352 + 2 * 128)
    buffers = phases["loading"]["allocated"]

    assert 0 < buffers == phases["optimizer step"]["allocated"] < 2048
    backward = phases["backward"]["components"]
    assert 3.8 * block < backward["communication"] <= 4 * block
    assert backward["gradients"] == backward["optimizer"] == 0


def test_offload_accumulates_whole_gradients_on_the_gpu(trace: Trace) -> None:
    parallel = {"strategy": "fsdp2", "data_shard": 8, "cpu_offload": "all"}
    answer = trace(LLAMA, {"precision": "bf16-mixed", "gradient_accumulation": 2}, parallel=parallel)
    whole = 2 * answer["parameters"]  # in the type in which accelerate reduces them
    assert answer["phases"]["forward"]["components"]["gradients"] == pytest.approx(whole, rel=0.02)
    assert answer["phases"]["optimizer step"]["components"]["gradients"] == 0


def test_ddp_has_a_bucket_element_for_every_gradient(trace: Trace) -> None:
    answer = trace(LLAMA, {"precision": "fp32"}, parallel={"strategy": "ddp", "data_replicate": 4})
    for name in PHASES:
        assert answer["phases"][name]["components"]["communication"] == pytest.approx(
            4 * answer["parameters"], rel=0.01
        )
    assert answer["phases"]["loading"]["components"]["communication"] == 0


@needs_pinned_transformers
def test_tensor_parallelism_splits_as_the_models_plan_says(trace: Trace) -> None:
    single, split = (trace(LLAMA, {"precision": "bf16"}, parallel={"tensor": n}) for n in (1, 2))
    both = trace(LLAMA, {"precision": "bf16"}, parallel={"tensor": 2, "strategy": "fsdp2", "data_shard": 2})
    weights = [case["phases"]["loading"]["components"]["weights"] for case in (single, split, both)]
    assert weights[1] == pytest.approx(weights[0] / 2, rel=0.02)
    assert weights[2] == pytest.approx(weights[0] / 4, rel=0.02)
    assert (
        split["phases"]["forward"]["components"]["activations"]
        < single["phases"]["forward"]["components"]["activations"]
    )
    plain = trace(CONFIGS["bert"], task="masked-lm", parallel={"tensor": 2})
    assert "no plan for tensor parallelism" in plain["unsupported"]


def test_inference_fills_the_cache(trace: Trace) -> None:
    answer = trace(LLAMA, {"precision": "bf16", "mode": "inference"})
    cache = 2 * 3 * BATCH * LENGTH * 2 * 16 * 2
    assert list(answer["phases"]) == ["loading", "forward"]
    assert answer["trainable"] == 0
    assert answer["phases"]["forward"]["components"]["activations"] >= cache


def forward_of(answer: dict[str, Any]) -> int:
    allocated: int = answer["phases"]["forward"]["allocated"]
    return allocated


@pytest.mark.slow
def test_fused_attention_writes_no_scores_and_eager_attention_does(trace: Trace) -> None:
    longer = {"precision": "bf16", "sequence_length": 1024, "micro_batch": 1}
    fused, package, eager = (
        forward_of(trace(LLAMA, longer, attention=name)) for name in ("sdpa", "flash_attention_2", "eager")
    )
    assert package == fused
    assert eager - fused > 3 * 8 * 1024 * 1024 * (4 + 2)


@pytest.mark.slow
def test_grouped_queries_in_fp32_have_no_fused_kernel_on_cuda(trace: Trace) -> None:
    """Neither flash attention nor the memory-efficient kernel: the scores of all heads are computed and saved."""
    single_heads = LLAMA | {"num_key_value_heads": 8}
    for config, written in ((LLAMA, True), (single_heads, False)):
        answers = [trace(config, {"precision": "fp32"}, cpu_kernels=cpu_kernels) for cpu_kernels in (False, True)]
        scores = 3 * BATCH * 8 * LENGTH * LENGTH * 4
        difference = forward_of(answers[0]) - forward_of(answers[1])
        assert (difference >= scores) == written


def test_masked_and_unequal_heads_take_the_memory_efficient_kernel(trace: Trace) -> None:
    latent = {
        "model_type": "deepseek_v3",
        "vocab_size": 1000,
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "first_k_dense_replace": 2,
    }
    fused, eager = (forward_of(trace(latent, {"precision": "bf16"}, attention=name)) for name in ("sdpa", "eager"))
    assert eager - fused > 2 * BATCH * 8 * LENGTH * LENGTH * 4


def test_dropout_masks_take_a_byte_per_element(trace: Trace) -> None:
    dropping = CONFIGS["gpt2"] | {"resid_pdrop": 0.1}
    with_masks, without = (
        trace(config, {"precision": "fp32"})["phases"]["backward"]["components"]["activations"]
        for config in (dropping, CONFIGS["gpt2"])
    )
    masks = 3 * 2 * BATCH * LENGTH * 128
    assert masks <= with_masks - without <= 1.2 * masks


def test_autocast_computes_powers_in_fp32_as_cuda_does(trace: Trace) -> None:
    """GPT-2's activation cubes its input: on CUDA in fp32, on a CPU in bf16."""
    card, cpu = (
        forward_of(trace(CONFIGS["gpt2"], {"precision": "bf16-mixed"}, cpu_kernels=cpu_kernels))
        for cpu_kernels in (False, True)
    )
    assert card - cpu >= 3 * BATCH * LENGTH * 512 * 2


def test_fused_optimizer_needs_no_second_copy(trace: Trace) -> None:
    foreach, fused = (
        trace(LLAMA, {"precision": "fp32", "optimizer": name})["phases"]["optimizer step"]["components"]
        for name in ("adamw", "adamw-fused")
    )
    assert foreach["temporary"] >= foreach["gradients"]
    assert fused["temporary"] < 0.1 * fused["gradients"]
    plain = trace(LLAMA, {"precision": "fp32", "optimizer": "sgd"})["phases"]["optimizer step"]["components"]
    assert plain["optimizer"] == 0


PAGED_FROM = 100_000
_QUICK = (
    "adamw",
    "adamw-8bit",
    "paged-adamw",
    "adamw-fused",
    "sgd",
    "sgd-momentum",
    "adafactor",
    "rmsprop",
    "none",
    "muon",
)


@pytest.mark.parametrize(
    "name", [name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in OPTIMIZERS]
)
def test_optimizers_have_the_states_of_their_rules(trace: Trace, name: str) -> None:
    rules = OPTIMIZERS[name]
    answer = trace(LLAMA, {"precision": "fp32", "optimizer": name})
    quantized = rules.libraries == ("bitsandbytes",)
    if rules.steps and rules.torch_class is None and not quantized:
        assert answer["unsupported"] == f"the optimizer {name} cannot be traced"
        return
    states = answer["phases"]["optimizer step"]["components"]["optimizer"]
    inventory = count_parameters(read_architecture(LLAMA, "causal-lm", where="test"))
    expected = sum(
        g.elements * rules.state_bytes(g, 4, whole_embeddings=quantized) / prod(g.shape)
        for g in inventory.groups
        if not (rules.paged and prod(g.shape) >= PAGED_FROM)  # managed memory is not torch's
    )
    assert states == pytest.approx(expected, rel=0.01, abs=0.05 * answer["parameters"])


def test_another_optimizer_is_one_row_of_the_table(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    adagrad = Optimizer(
        name="made-up",
        description="Adagrad under another name",
        states=(Full(),),
        torch_class="torch.optim:Adagrad",
        torch_options={"lr": 1e-2, "foreach": True},
    )
    monkeypatch.setitem(OPTIMIZERS, "made-up", adagrad)
    answer = trace(LLAMA, {"precision": "fp32", "optimizer": "made-up"})
    states = answer["phases"]["optimizer step"]["components"]["optimizer"]
    assert states == pytest.approx(4 * answer["parameters"], rel=0.01)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"parallel": {"strategy": "megatron-fsdp", "data_shard": 8, "outer_sharding": "optim"}}, "over replicas"),
        ({"parallel": {"strategy": "megatron-fsdp", "data_shard": 4, "tensor": 2}}, "under Megatron-FSDP"),
        ({"parallel": {"pipeline": 2}}, "pipeline parallelism"),
        ({"parallel": {"context": 2}}, "context parallelism"),
        ({"lora": {"quantization": "nf4"}, "parallel": {"tensor": 2}}, "nf4 weights do not work"),
        ({"training": {"optimizer": "muon"}}, "optimizer muon"),
        ({"training": {"loss": "chunked"}}, "chunked loss"),
        ({"training": {"framework": "megatron"}}, "megatron"),
        ({"training": {"compile": True}}, "torch.compile"),
        ({"training": {"optimizer_in_backward": True}, "parallel": {"tensor": 2}}, "one GPU only"),
        ({"training": {"activation_checkpointing": "selective"}}, "selective"),
        ({"task": "feature-extraction"}, "no loss"),
    ],
)
def test_a_setting_that_cannot_be_traced_is_named(ask_worker: AskWorker, tables: dict[str, Any], words: str) -> None:
    answer = ask_worker({"op": "trace", "config": LLAMA, **tables})
    assert words in answer["unsupported"]
    assert "phases" not in answer


def test_the_step_ends_with_its_optimizer_states_in_place(trace: Trace) -> None:
    answer = trace(LLAMA, {"precision": "fp32"})
    states = answer["timeline_components"]["optimizer"]
    assert states[-1] == states[0] == max(states)
    gradients = answer["timeline_components"]["gradients"]
    assert gradients[-1] < max(gradients) / 4
    cache = trace(LLAMA, {"precision": "bf16", "mode": "inference"})["timeline_components"]["activations"]
    assert cache[-1] > 0
