"""Tensor parallelism in a trace: a rank's shards compared with splitting by hand, and sequence parallelism."""

import sys
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from pinned_versions import needs_pinned_transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel
from transformers import AutoConfig
from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job, Training
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.worker.parallel.data_parallel import fake_process_group
from vramtop.estimator.worker.parallel.tensor_parallel import module_style

AskWorker = Callable[[dict[str, Any]], dict[str, Any]]
WAYS = 4
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
LATENT = {
    "num_key_value_heads": 8,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_group": 2,
    "topk_group": 1,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "phi3": LLAMA | {"model_type": "phi3", "pad_token_id": 0},
    "qwen3": LLAMA | {"model_type": "qwen3", "head_dim": 32},
    "gemma2": LLAMA | {"model_type": "gemma2", "head_dim": 32},
    "mixtral": LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": LLAMA
    | {
        "model_type": "qwen3_moe",
        "head_dim": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
    },
    "deepseek_v2": LLAMA | {"model_type": "deepseek_v2", **LATENT},
    "deepseek_v3": LLAMA | {"model_type": "deepseek_v3", **LATENT},
}
WHOLE = ("norm", ".gate.", "q_a_proj", "kv_a_proj", "rotary")
"""Parts of the names of whole parameters: norms, routers, and down-projections of latent attention."""
WHOLE_IN = {"deepseek_v3": ("self_attn",)}
"""DeepSeek-V3's plan leaves attention whole."""


@pytest.fixture
def inventory(ask_worker: AskWorker) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda config: ask_worker({"op": "inventory", "config": config, "task": "causal-lm"})


Trace = Callable[..., dict[str, Any]]


@pytest.fixture
def trace(ask_worker: AskWorker) -> Trace:
    def ask(config: dict[str, Any], **tables: Any) -> dict[str, Any]:
        training = {"micro_batch": 2, "sequence_length": 128, "precision": "bf16"} | tables.pop("training", {})
        return ask_worker({"op": "trace", "config": config, "training": training, **tables})

    return ask


def variants(families: Iterable[str], quick: Iterable[str]) -> list[Any]:
    return [pytest.param(family, marks=() if family in quick else pytest.mark.slow) for family in families]


def blocks(size: int) -> int:
    return -(-size // 512) * 512


def by_hand(listed: dict[str, Any], ways: int, width: int, whole: tuple[str, ...]) -> int:
    """Return the bytes of one rank's shards, in the allocator's blocks, and of the buffers."""
    total = sum(blocks(buffer["tensor_bytes"]) * buffer["repeat"] for buffer in listed["buffers"])
    for group in listed["groups"]:
        split = 1 if any(part in group["name"] for part in whole) else ways
        total += blocks(width * prod(group["shape"]) // split) * group["repeat"]
    return total


@needs_pinned_transformers
@pytest.mark.parametrize("family", variants(CONFIGS, quick=("llama", "mixtral", "deepseek_v3")))
def test_a_ranks_shards_are_those_of_splitting_by_hand(trace: Trace, inventory: Any, family: str) -> None:
    listed = inventory(CONFIGS[family])
    answer = trace(CONFIGS[family], parallel={"tensor": WAYS})

    whole = (*WHOLE, *WHOLE_IN.get(family, ()))
    assert answer["phases"]["loading"]["components"]["weights"] == by_hand(listed, WAYS, 2, whole)
    step = answer["phases"]["optimizer step"]["components"]
    parameters = by_hand({**listed, "buffers": []}, WAYS, 2, whole)
    embedding = 2 * 1024 * 256  # whose gradient a DTensor's backward pass makes whole on every rank
    assert step["gradients"] == pytest.approx(parameters + embedding - embedding // WAYS, rel=0.01)
    assert step["optimizer"] == pytest.approx(2 * parameters, rel=0.01)


@needs_pinned_transformers
@pytest.mark.parametrize("family", variants(("llama", "mixtral", "qwen3_moe"), quick=("mixtral",)))
def test_fsdp2_shards_what_tensor_parallelism_has_split(trace: Trace, inventory: Any, family: str) -> None:
    parallel = {"tensor": 2, "strategy": "fsdp2", "data_shard": 2}
    answer = trace(CONFIGS[family], parallel=parallel, training={"precision": "bf16-mixed"})

    quarter = by_hand({**inventory(CONFIGS[family]), "buffers": []}, 4, 4, ())
    assert answer["phases"]["loading"]["components"]["weights"] == pytest.approx(quarter, rel=0.02)
    assert answer["phases"]["backward"]["components"]["communication"] > 0


@needs_pinned_transformers
@pytest.mark.parametrize("family", variants(("llama", "phi3", "mixtral", "deepseek_v2"), quick=("mixtral",)))
def test_sequence_parallelism_shards_norms_and_residuals(trace: Trace, family: str) -> None:
    """With every block recomputed, only the tensors between the blocks are saved: a shard on each rank."""
    training = {"activation_checkpointing": "full", "sequence_length": 512}
    deep = CONFIGS[family] | {"num_hidden_layers": 6, "vocab_size": 64}
    whole, parts = (
        trace(deep, training=training, parallel={"tensor": 2, "sequence_parallel": choice}) for choice in (False, True)
    )
    boundary = 2 * 2 * 512 * 256
    kept = [answer["phases"]["forward"]["components"]["activations"] for answer in (whole, parts)]
    assert kept[0] - kept[1] >= 6 * boundary // 2 * 0.9
    weights = [answer["phases"]["loading"]["components"]["weights"] for answer in (whole, parts)]
    assert weights[0] == weights[1]


def test_adapters_are_split_where_their_layer_is(trace: Trace) -> None:
    lora = {"rank": 16, "targets": "all-linear"}
    answer = trace(LLAMA, lora=lora, parallel={"tensor": WAYS})
    h, f, kv, r = 256, 512, 128, 16
    columns = [(h, h), (h, kv), (h, kv), (h, f), (h, f)]
    rows = [(h, h), (f, h)]
    expected = sum(r * into + r * out // WAYS for into, out in columns) + sum(r * i // WAYS + r * o for i, o in rows)

    step = answer["phases"]["optimizer step"]["components"]
    assert step["gradients"] == pytest.approx(2 * 4 * expected, rel=0.01)
    along = trace(LLAMA, lora=lora, parallel={"tensor": WAYS, "sequence_parallel": True})
    assert along["phases"]["optimizer step"]["components"]["gradients"] == pytest.approx(step["gradients"], rel=0.02)


def test_adapters_on_fused_experts_are_refused(trace: Trace) -> None:
    answer = trace(CONFIGS["mixtral"], lora={"targets": "all-linear"}, parallel={"tensor": 2})
    assert "adapters on fused experts" in answer["unsupported"]


class QuantizedWeight(torch.nn.Parameter):
    """A weight that knows how it is quantized, as bitsandbytes' ``Params4bit``."""

    quant_state: object = None


def test_split_weights_lose_their_quantization_state(trace: Trace) -> None:
    """So that bitsandbytes' layers fail in their first forward pass: two CPU ranks showed it, with 0.50.2."""
    layer = torch.nn.Linear(16, 16, bias=False)
    layer.weight = QuantizedWeight(layer.weight.data)
    with fake_process_group(2):
        ALL_PARALLEL_STYLES["colwise"].shard_param(layer, "weight", init_device_mesh("cpu", (2,)))
    assert not hasattr(layer.weight, "quant_state")
    lora, parallel = {"targets": "all-linear", "quantization": "nf4"}, {"tensor": 2}
    assert "loses their quantization state" in trace(LLAMA, lora=lora, parallel=parallel)["unsupported"]
    tables = {"model": {"config": LLAMA}, "training": {"sequence_length": 128}, "parallel": parallel}
    for quantization, warns in (("nf4", True), ("none", False)):
        job = job_from_mapping({**tables, "lora": {"quantization": quantization}}, where="test")
        budget = estimate(job, method="formula")
        assert any("first forward pass fails" in warning for warning in budget.warnings) == warns


def test_the_plan_of_gpt_oss_splits_its_head_only() -> None:
    config = AutoConfig.for_model("gpt_oss", num_hidden_layers=1)
    assert not config.base_model_tp_plan
    tables = {"training": {"sequence_length": 128}, "parallel": {"tensor": 2}}
    for family, warns in (("gpt_oss", True), ("llama", False)):
        model = {"config": LLAMA | {"model_type": family, "num_local_experts": 4, "head_dim": 32}}
        warnings = estimate(job_from_mapping({"model": model, **tables}, where="test"), method="formula").warnings
        assert any("splits only the head" in warning for warning in warnings) == warns


@needs_pinned_transformers
def test_every_style_of_transformers_has_a_style_of_torch() -> None:
    class Config:
        qk_rope_head_dim = 16

        def get_text_config(self) -> "Config":
            return self

    of_experts = {"grouped_gemm", "ep_dispatch_experts"}  # of plans for expert parallelism; the first for parameters
    for name in set(ALL_PARALLEL_STYLES.keys()) - of_experts:
        style = module_style(name, Config())
        assert (style is None) == (name in ("replicate", "replicated_with_grad_allreduce")), name
    assert isinstance(module_style("colwise"), ColwiseParallel)
    assert isinstance(module_style("local_rowwise"), RowwiseParallel)
    assert isinstance(module_style("sequence_parallel"), SequenceParallel)
    own = ColwiseParallel()
    assert module_style(own) is own


PLAN = """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

ATTENTION = {f"model.layers.*.self_attn.{name}": "colwise" for name in ("q_proj", "k_proj", "v_proj")}
ATTENTION["model.layers.*.self_attn.o_proj"] = RowwiseParallel()
MISSPELT = {"model.layers.*.attn.q_proj": "colwise"}
UNKNOWN = {"model.layers.*.self_attn.q_proj": "diagonal"}
NUMBER = 3


def mlp(model):
    plan = {}
    for number in range(model.config.num_hidden_layers):
        plan[f"model.layers.{number}.mlp.gate_proj"] = ColwiseParallel()
        plan[f"model.layers.{number}.mlp.up_proj"] = ColwiseParallel()
        plan[f"model.layers.{number}.mlp.down_proj"] = "rowwise"
    return plan


def broken(model):
    return model.nothing
"""


@pytest.mark.parametrize(("name", "split"), [("ATTENTION", ("self_attn",)), ("mlp", ("mlp",))])
def test_a_plan_that_the_user_wrote(
    trace: Trace, inventory: Any, share_user_code: None, tmp_path: Path, name: str, split: Any
) -> None:
    module = f"plans_{name.lower()}"
    (tmp_path / f"{module}.py").write_text(PLAN)
    parallel = {"tensor": WAYS, "tensor_plan": f"{module}:{name}"}
    answer = trace(LLAMA, parallel=parallel, code={"folder": str(tmp_path)})

    listed = inventory(LLAMA)
    whole = tuple(g["name"] for g in listed["groups"] if not any(part in g["name"] for part in split))
    assert answer["phases"]["loading"]["components"]["weights"] == by_hand(listed, WAYS, 2, whole)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MISSPELT", r"model.layers.*.attn.q_proj, which LlamaForCausalLM does not have"),
        ("UNKNOWN", "style 'diagonal'"),
        ("NUMBER", "wrong_number:NUMBER gives a int, not a dict"),
        ("broken", "object has no attribute 'nothing' (wrong_broken.py, line 21)"),
    ],
)
def test_an_invalid_plan_is_refused_with_a_sentence(
    trace: Trace, share_user_code: None, tmp_path: Path, name: str, words: str
) -> None:
    (tmp_path / f"wrong_{name.lower()}.py").write_text(PLAN)
    parallel = {"tensor": 2, "tensor_plan": f"wrong_{name.lower()}:{name}"}
    try:
        said = trace(LLAMA, parallel=parallel, code={"folder": str(tmp_path)})["unsupported"]
    except CannotTellError as error:
        said = error.message
    assert words in said


def _budgets(config: dict[str, Any], tables: dict[str, Any]) -> tuple[Budget, Budget]:
    job: Job = job_from_mapping({"model": {"config": config}, **tables}, where="test")
    return estimate(job), estimate(job, method="traced", python=sys.executable)


@pytest.mark.parametrize("family", variants(("llama", "mixtral"), quick=("llama",)))
def test_the_formula_and_the_trace_agree_within_the_formulas_range(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    larger = CONFIGS[family] | {"hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 8000}
    training = Training(precision="bf16", micro_batch=4, sequence_length=2048)
    tables = {
        "training": {"precision": training.precision, "micro_batch": 4, "sequence_length": 2048},
        "parallel": {"tensor": 2},
    }
    formula, traced = _budgets(larger, tables)
    slack = formula.peak.device_bytes - formula.peak.allocated_bytes
    assert formula.peak.low_bytes - slack <= traced.peak.allocated_bytes <= formula.peak.high_bytes - slack


@pytest.mark.parametrize("plan", ["dotted_dict.BLOCK", "dotted_function.mlp", {"lm_head": "colwise_rep"}])
def test_closed_form_and_trace_agree_on_a_plan_by_dotted_path_or_table(
    share_user_code: None, tmp_path: Path, plan: Any
) -> None:
    """Automodel names plans ``a.b.plan``, and calls a function without arguments; the closed form takes tables only."""
    (tmp_path / f"{str(plan).partition('.')[0][:15]}.py").write_text(
        'MLP = {"model.layers.*.mlp.gate_proj": "colwise", "model.layers.*.mlp.up_proj": "colwise"}\n'
        'BLOCK = {**MLP, "model.layers.*.mlp.down_proj": "rowwise"}\n'
        "def mlp():\n    return {**MLP, 'model.layers.*.mlp.down_proj': 'rowwise'}\n"
    )
    mlp = {"gate_proj": "colwise", "up_proj": "colwise", "down_proj": "rowwise"}
    table = plan if isinstance(plan, dict) else {f"model.layers.*.mlp.{name}": style for name, style in mlp.items()}

    def job_of(plan: Any) -> Job:
        training = {"micro_batch": 1, "sequence_length": 64, "precision": "bf16"}
        model, parallel = {"config": LLAMA, "code_folder": str(tmp_path)}, {"tensor": 2, "tensor_plan": plan}
        return job_from_mapping({"model": model, "training": training, "parallel": parallel}, where="test")

    formula, traced = estimate(job_of(table)), estimate(job_of(plan), method="traced", python=sys.executable)
    difference = traced.phases[0].components.weights - formula.phases[0].components.weights
    assert 0 <= difference <= 4096  # the rotary frequencies
