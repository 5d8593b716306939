"""Experts of torchtitan and torchtune: against their own modules on a CPU, and under the real ``fully_shard``."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from vramtop.estimator.budget import Budget
from vramtop.estimator.formula.rank_memory import workspace_bytes
from vramtop.estimator.job.gpu_catalogue import generation_of
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.trace.traced_step import trace_request

torch = pytest.importorskip("torch")
functional = torch.nn.functional

Estimate = Callable[..., Budget]
SEQUENCES, LENGTH, HIDDEN, SIZE, EXPERTS, TOP_K = 2, 128, 64, 48, 8, 2
REAL: list[Any] = [
    ("scatter", 1, "sigmoid", False, 1, (916480, 585728, 1013760)),
    ("scatter", 0, "softmax", False, 1, (818176, 487424, 915456)),
    ("scatter", 1, "sigmoid", True, 1, (749568, 582656, 813056)),
    ("scatter", 1, "sigmoid", False, 2, (899584, 569344, 997376)),
    ("matmul", 1, "sigmoid", False, 1, (883712, 585728, 817152)),
    ("matmul", 0, "softmax", False, 1, (752640, 487424, 718848)),
    ("matmul", 1, "sigmoid", True, 1, (847872, 582656, 813056)),
    ("matmul", 1, "sigmoid", False, 2, (866816, 569344, 800768)),
    ("dispatch", 1, "sigmoid", False, 1, (786432, 617984, 998912)),
    ("dispatch", 0, "softmax", False, 1, (786432, 519680, 947712)),
]
"""Bytes beside the weights that torchtitan's own ``MoE`` took in bf16, as ``StorageCounter`` counted them (torch 2.13,
on a CPU): the forward pass at its highest and at its end, and the backward pass. Of 0.2.0, 0.2.2 and the main branch of
August 2026; shared experts, scores, scored before the experts, and ranks under its ``ExpertParallel`` (gloo)."""
REAL_TUNE = [
    (1, True, (508928, 442368, 507904)),
    (2, True, (844288, 744960, 843264)),
    (1, False, (410624, 344064, 409600)),
]
"""The same of torchtune's own ``MoE`` (main branch, April 2026): experts of a token, a shared expert."""
REAL_SELECTIVE = [("scatter", (496640, 90112, 1044480)), ("matmul", (496640, 90112, 1047552))]
"""The same of ``x + moe(linear(x))`` under torchtitan's own ``_apply_op_sac``."""
REAL_BLOCKS = [
    ("deepseek_v3", "scatter", (9891840, 7265280, 10677248)),
    ("deepseek_v3", "matmul", (9629696, 7265280, 10129408)),
    ("llama4_text", "matmul", (8419328, 6317056, 9691136)),
]
"""The same of torchtitan's own ``TransformerBlock`` (0.2.0 and 0.2.2) with sdpa and without its norms."""
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 128, "head_dim": 64, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "n_routed_experts": 8,
        "moe_intermediate_size": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 0,
        "n_group": 4,
        "topk_group": 2,
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "num_key_value_heads": 8,
    },
}


class _SharedExpert(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (torch.nn.Linear(HIDDEN, SIZE, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(SIZE, HIDDEN, bias=False)

    def forward(self, tokens: Any) -> Any:
        return self.down(functional.silu(self.gate(tokens)) * self.up(tokens))


@pytest.fixture
def in_bf16() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(before)


def titan(form: str, shared: int, score: str, first: bool, ranks: int) -> Any:
    from vramtop.estimator.worker.model.experts import Routing, TitanMoE

    routing = Routing(TOP_K, score, route_norm=not first, fp32_gate=form == "dispatch")
    beside = _SharedExpert() if shared else None
    made = TitanMoE((EXPERTS, HIDDEN, SIZE), routing, beside, form=form, score_first=first)
    if ranks > 1:
        made.experts.split_over(ranks)
    return made


def taken(module: Any) -> tuple[int, int, int]:
    from storage_counter import StorageCounter

    tokens = torch.zeros(SEQUENCES, LENGTH, HIDDEN, requires_grad=True)
    with StorageCounter() as counter:
        for tensor in (*module.parameters(), *module.buffers(), tokens):
            tensor.data.zero_()
            counter.count(tensor)
        start = counter.live
        output = module(tokens)
        forward, kept = counter.peak - start, counter.live - start
        counter.reset_peak()
        output.backward(torch.ones_like(output))
    return forward, kept, counter.peak - start


@pytest.mark.usefixtures("in_bf16")
@pytest.mark.parametrize(("form", "shared", "score", "first", "ranks", "expected"), REAL)
def test_torchtitans_experts_take_what_its_own_take(
    form: str, shared: int, score: str, first: bool, ranks: int, expected: tuple[int, int, int]
) -> None:
    assert taken(titan(form, shared, score, first, ranks)) == pytest.approx(expected, rel=0.001)


@pytest.mark.usefixtures("in_bf16")
@pytest.mark.parametrize(("top_k", "shared", "expected"), REAL_TUNE)
def test_torchtunes_experts_take_what_its_own_take(top_k: int, shared: bool, expected: tuple[int, int, int]) -> None:
    from vramtop.estimator.worker.model.experts import TuneMoE

    made = TuneMoE((EXPERTS, HIDDEN, SIZE), top_k, _SharedExpert() if shared else None)
    assert taken(made) == pytest.approx(expected, rel=0.003)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "form", "expected"), REAL_BLOCKS)
def test_blocks_take_what_torchtitans_own_take(family: str, form: str, expected: tuple[int, int, int]) -> None:
    transformers = pytest.importorskip("transformers")
    from storage_counter import StorageCounter

    from vramtop.estimator.worker.model.experts import replace_experts
    from vramtop.estimator.worker.request.request import Request

    sizes = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 100}
    sizes |= {"num_experts_per_tok": 2, "intermediate_size": 512, "num_key_value_heads": 4}
    llama4 = {"num_local_experts": 8, "head_dim": 64, "interleave_moe_layer_step": 1, "intermediate_size_mlp": 512}
    llama4 |= {"intermediate_size": 256, "num_key_value_heads": 2, "use_qk_norm": True}
    fields = sizes | (FAMILIES["deepseek_v3"] | {"n_group": 1, "num_key_value_heads": 4} if "v3" in family else llama4)
    config = transformers.AutoConfig.for_model(family, **fields)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    model.config.use_cache = False
    replace_experts(model, Request(config={"model_type": family}, loop=SimpleNamespace(experts=form)))
    block = model.model.layers[0]
    for module in list(block.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                setattr(module, name, torch.nn.Identity())
    positions, tokens = torch.arange(256)[None], torch.zeros(2, 256, 256, dtype=torch.bfloat16, requires_grad=True)
    with StorageCounter() as counter:
        for tensor in (*block.parameters(), *block.buffers(), tokens):
            tensor.data.zero_()
            counter.count(tensor)
        start = counter.live
        rotations = model.model.rotary_emb(tokens, positions)
        output = block(tokens, position_embeddings=rotations, attention_mask=None, position_ids=positions)
        output = output[0] if isinstance(output, tuple) else output
        forward, kept = counter.peak - start, counter.live - start
        counter.reset_peak()
        output.backward(torch.ones_like(output))
    assert (forward, kept, counter.peak - start) == pytest.approx(expected, rel=0.04)


@pytest.mark.usefixtures("in_bf16")
@pytest.mark.parametrize(("form", "expected"), REAL_SELECTIVE)
def test_selective_checkpointing_recomputes_experts_and_routers(form: str, expected: tuple[int, int, int]) -> None:
    from torch.utils.checkpoint import checkpoint

    from vramtop.estimator.worker.loops.training_loop import gate_shapes, keeping_contexts

    class Block(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.mixture = torch.nn.Linear(HIDDEN, HIDDEN, bias=False), titan(form, 1, "sigmoid", False, 1)

        def run(self, tokens: Any) -> Any:
            return tokens + self.mixture(self.linear(tokens))

        def forward(self, tokens: Any) -> Any:
            contexts = keeping_contexts(None, gate_shapes(self))
            return checkpoint(self.run, tokens, use_reentrant=False, context_fn=contexts, early_stop=False)

    assert taken(Block()) == pytest.approx(expected, rel=0.002)


def request_of(config: dict[str, Any], tables: dict[str, Any]) -> dict[str, Any]:
    job = job_from_mapping({"model": {"config": config}, **tables}, where="test")
    return trace_request(job, resolve_model(job.model))


TITAN = {"framework": "torchtitan", "precision": "bf16-mixed", "micro_batch": 2, "sequence_length": 256}
SHARDED = {"strategy": "fsdp2", "data_shard": 8}
JOBS: list[Any] = [
    ("qwen3_moe", {"expert": 4}, {}, {}),
    *(
        pytest.param(*job, marks=pytest.mark.slow)
        for job in (
            ("qwen3_moe", {}, {}, {}),
            ("qwen3_moe", {"expert": 4}, {"torchtitan": "0.2.0"}, {}),
            ("qwen3_moe", {"data_shard": 16}, {}, {}),
            ("qwen3_moe", {}, {}, {"activation_checkpointing": "selective"}),
            ("qwen3_moe", {"strategy": "none", "data_shard": 1}, {}, {}),
            ("deepseek_v3", {"expert": 8}, {"torchtitan": "0.2.2"}, {"activation_checkpointing": "full"}),
            ("deepseek_v3", {"data_shard": 4}, {"torchtitan": "0.2.0"}, {}),
        )
    ),
]


@pytest.mark.parametrize(("family", "parallel", "software", "training"), JOBS)
def test_experts_under_fully_shard_take_what_the_closed_form_counts(
    ask_worker: Any,
    budget_of: Estimate,
    tiny_llama: dict[str, Any],
    family: str,
    parallel: dict[str, Any],
    software: dict[str, str],
    training: dict[str, Any],
) -> None:
    config = {**tiny_llama, "model_type": family, **FAMILIES[family]}
    tables: dict[str, dict[str, Any]] = {"training": TITAN | training, "parallel": SHARDED | parallel}
    tables |= {"software": software}
    answer = ask_worker(request_of(config, tables))
    assert "unsupported" not in answer, answer
    settings = {f"{table}.{key}": value for table, fields in tables.items() for key, value in fields.items()}
    budget = budget_of(config, settings)
    beside = workspace_bytes(generation_of(None))
    for name, error in (("loading", 0.01), ("forward", 0.04), ("backward", 0.04)):
        phase = budget.phase(name)
        assert phase is not None
        found = answer["phases"][name]["allocated"]
        assert found == pytest.approx(phase.allocated_bytes - (beside if name != "loading" else 0), rel=error), name


def test_experts_are_sharded_no_further_than_their_ranks(budget_of: Estimate, tiny_llama: dict[str, Any]) -> None:
    config = {**tiny_llama, "model_type": "qwen3_moe", **FAMILIES["qwen3_moe"]}
    found = [
        budget_of(config, {"parallel.strategy": "fsdp2", "parallel.data_shard": 8, "parallel.expert": expert})
        for expert in (1, 4, 8)
    ]
    # of each parameter a rank holds one in eight: whole experts, or parts of all of them
    assert len({budget.peak.components.weights for budget in found}) == 1
    assert len({budget.peak.components.optimizer for budget in found}) == 1
    gathered = [budget.peak.components.communication for budget in found]
    assert gathered[1] - gathered[0] < 3 << 30  # all-to-all's own buffers, and fewer gathered experts


@pytest.mark.parametrize(
    ("family", "tables", "sentence"),
    [
        ("qwen3_moe", {"training": TITAN | {"compile": True}}, "torch.compile of the experts of torchtitan"),
        (
            "qwen3_moe",
            {"training": TITAN, "software": {"torchtitan": "0.1"}},
            "the experts of torchtitan are not those",
        ),
        ("qwen3_moe", {"training": TITAN, "parallel": SHARDED | {"tensor": 2}}, "tensor parallelism of torchtitan"),
        ("qwen3_moe", {"training": {}, "parallel": SHARDED | {"expert": 2}}, "expert parallelism cannot be traced"),
        ("qwen3_moe", {"training": TITAN, "parallel": SHARDED | {"expert": 3}}, "the numbers do not divide"),
        ("llama4_text", {"training": {"framework": "torchtune"}}, "multiply only bf16 weights"),
    ],
)
def test_what_is_not_known_of_experts_is_named(
    tiny_llama: dict[str, Any], family: str, tables: dict[str, Any], sentence: str
) -> None:
    from vramtop.estimator.worker.request.protocol import UnsupportedError
    from vramtop.estimator.worker.request.request import read_request
    from vramtop.estimator.worker.step.supported_jobs import check_supported

    config = {**tiny_llama, **FAMILIES["qwen3_moe"], "model_type": family}
    with pytest.raises(UnsupportedError, match=sentence):
        check_supported(read_request(request_of(config, tables)))
