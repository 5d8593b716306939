"""The closed form compared with torch: every allocation of two real training steps, counted on fake tensors.

The count is independent of the closed form: a dispatch mode sees each new storage of forward, backward and optimizer
step, and a finalizer sees it go. No memory is used, so the models can be of a size at which the shares matter.
Parameters are frozen as scripts freeze them.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from fake_steps import BATCH, LENGTH, check_phases, take_steps
from model_configs import llama_config
from slow_cases import quick_every

from vramtop.estimator.budget import Budget

SMALL = {"vocab_size": 4000, "num_hidden_layers": 4}
DROPLESS = {"attention_dropout": 0.0, "hidden_dropout": 0.0}
LLAMA = llama_config(hidden=512, mlp=1408, heads=8, kv_heads=2, **SMALL)
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen3": LLAMA | {"model_type": "qwen3", "head_dim": 64},
    "phi3": LLAMA | {"model_type": "phi3", "num_key_value_heads": 8, "pad_token_id": 0},
    "gemma2": LLAMA | {"model_type": "gemma2", "head_dim": 64},
    "mixtral": LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_neox": LLAMA | {"model_type": "gpt_neox", "num_key_value_heads": 8, **DROPLESS},
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 512,
        "n_layer": 4,
        "n_head": 8,
        "n_positions": 1024,
        "vocab_size": 4000,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
    },
    "bert": {
        "model_type": "bert",
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
        "max_position_embeddings": 1024,
        "attention_probs_dropout_prob": 0.0,
        "hidden_dropout_prob": 0.0,
        **SMALL,
    },
}
Freeze = Callable[[Any], object]
pytestmark = pytest.mark.usefixtures("no_padding_mask")


def head_only(model: Any) -> None:
    model.requires_grad_(False)
    (getattr(model, "score", None) or model.get_output_embeddings()).requires_grad_(True)


def last_block_and_head(model: Any) -> None:
    head_only(model)
    model.base_model.layers[-1].requires_grad_(True)


def all_but_embedding_and_first_block(model: Any) -> None:
    model.get_input_embeddings().requires_grad_(False)
    model.base_model.layers[0].requires_grad_(False)


def biases(model: Any) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.endswith("bias")


def norms(model: Any) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "norm" in name


def attention(model: Any) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "self_attn" in name


WHOLE = [
    *[(family, {"training.precision": "bf16"}) for family in CONFIGS if family not in ("bert", "gemma2")],
    *[(family, {"training.precision": "bf16-mixed"}) for family in ("llama", "qwen3", "phi3", "gpt_neox")],
    ("phi3", {"training.precision": "fp32"}),  # without grouped heads: with them, a GPU keeps all scores in fp32
    ("llama", {"training.precision": "bf16", "training.activation_checkpointing": "full"}),
    ("llama", {"training.precision": "bf16-mixed", "training.activation_checkpointing": "full"}),
    ("llama", {"training.precision": "bf16", "training.gradient_accumulation": 2}),
    ("llama", {"training.precision": "bf16", "model.attention": "eager"}),
    ("gemma2", {"training.precision": "bf16", "model.attention": "eager"}),
    ("bert", {"training.precision": "fp32", "model.task": "masked-lm"}),
    ("bert", {"training.precision": "bf16-mixed", "model.task": "masked-lm"}),
    ("bert", {"training.precision": "fp32", "model.task": "sequence-classification"}),
]
FROZEN: list[tuple[str, Freeze, list[str], dict[str, Any]]] = [
    ("llama", head_only, ["lm_head"], {}),
    ("llama", head_only, ["lm_head"], {"training.activation_checkpointing": "full"}),
    ("llama", head_only, ["lm_head"], {"training.precision": "bf16-mixed"}),
    ("llama", head_only, ["score"], {"model.task": "sequence-classification"}),
    ("llama", last_block_and_head, ["model.layers.3", "lm_head"], {}),
    ("llama", last_block_and_head, ["model.layers.3", "lm_head"], {"training.precision": "bf16-mixed"}),
    ("llama", all_but_embedding_and_first_block, ["!*embed_tokens*", "!model.layers.0"], {}),
    ("llama", norms, ["*norm*"], {}),
    ("llama", norms, ["*norm*"], {"training.activation_checkpointing": "full"}),
    ("llama", attention, ["self_attn"], {"model.attention": "eager"}),
    ("llama", attention, ["self_attn"], {"training.gradient_accumulation": 2}),
    ("gpt_neox", biases, ["*bias"], {}),
    ("bert", biases, ["*bias"], {"model.task": "masked-lm", "training.precision": "fp32"}),
]
CASES = [*[(family, id, [], settings) for family, settings in WHOLE], *FROZEN]


@pytest.mark.parametrize(
    ("family", "freeze", "patterns", "settings"),
    quick_every(8, CASES),
    ids=[
        f"{family}-{freeze.__name__}-{'-'.join(map(str, settings.values()))}" for family, freeze, _, settings in CASES
    ],
)
def test_each_phase_lies_within_three_per_cent_of_what_torch_allocates(
    budget_of: Callable[..., Budget], family: str, freeze: Freeze, patterns: list[str], settings: dict[str, Any]
) -> None:
    settings = {"training.precision": "bf16", "training.optimizer": "adamw"} | settings
    counted, trained = take_steps(CONFIGS[family], settings, freeze)
    shape: dict[str, Any] = {"training.micro_batch": BATCH, "training.sequence_length": LENGTH}
    budget = budget_of(CONFIGS[family], shape | ({"training.trainable": patterns} if patterns else {}) | settings)
    assert budget.model.trainable_parameters == trained
    check_phases(budget, counted)


@pytest.mark.parametrize(("family", "precision"), [("llama", "bf16"), ("llama", "fp32"), ("gpt_neox", "bf16")])
def test_transformers_4_53_copies_heads_before_sdpa(budget_of, monkeypatch, family: str, precision: str) -> None:
    functions = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    today = functions["sdpa"]

    def of_4_53(module: Any, *tensors: torch.Tensor | None, **settings: Any) -> Any:
        return today(module, *(tensor if tensor is None else tensor.contiguous() for tensor in tensors), **settings)

    def cache_of_4_53(layer: Any, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> Any:
        layer.keys, layer.values = keys, values
        return keys, values

    monkeypatch.setitem(functions, "sdpa", of_4_53)
    monkeypatch.setattr("transformers.cache_utils.DynamicLayer.update", cache_of_4_53)
    monkeypatch.setattr("transformers.integrations.sdpa_attention.use_gqa_in_sdpa", lambda *_: False)
    settings = {"training.precision": precision, "training.optimizer": "adamw"}
    counted, _ = take_steps(CONFIGS[family] | {"use_cache": True}, settings)
    shape: dict[str, Any] = {"training.micro_batch": BATCH, "training.sequence_length": LENGTH}
    check_phases(budget_of(CONFIGS[family], shape | settings | {"software.transformers": "4.53.3"}), counted)


@pytest.mark.parametrize(
    ("task", "kind", "model_class", "head"),
    [
        ("sequence-classification", "SEQ_CLS", transformers.AutoModelForSequenceClassification, {"num_labels": 5}),
        ("question-answering", "QUESTION_ANS", transformers.AutoModelForQuestionAnswering, {}),
        ("causal-lm", "CAUSAL_LM", transformers.AutoModelForCausalLM, {}),
    ],
)
def test_the_head_of_a_new_task_trains_beside_adapters(budget_of, task, kind, model_class, head) -> None:
    peft = pytest.importorskip("peft")
    config = CONFIGS["bert"] | head if task != "causal-lm" else LLAMA
    targets = ["query", "value"] if task != "causal-lm" else ["q_proj", "v_proj"]
    fields = dict(config)
    with torch.device("meta"):
        model = model_class.from_config(transformers.AutoConfig.for_model(fields.pop("model_type"), **fields))
        adapted = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules=targets, task_type=kind))
    trained, parameters = adapted.get_nb_trainable_parameters()
    budget = budget_of(config, {"model.task": task, "lora.rank": 8, "lora.targets": targets})
    assert budget.model.trainable_parameters == trained
    weights = budget.phases[0].components.weights
    assert weights == pytest.approx(4 * parameters, rel=0.001)


@pytest.mark.parametrize("lora", [{}, {"lora.rank": 8}])
@pytest.mark.parametrize("trainable", [None, ["lm_head"], ["lm_haed"], ["!lm_haed", "!towwer"]])
@pytest.mark.parametrize("task", ["causal-lm", "question-answering"])
def test_what_is_not_known_widens_the_range(budget_of, lora, trainable, task) -> None:
    unknown = LLAMA | {"model_type": "unheard_of"}
    settings = lora | {"training.precision": "bf16", "model.task": task}
    budget = budget_of(unknown, settings | ({"training.trainable": trainable} if trainable else {}))
    assert budget.model.count == "approximate"
    if trainable and "lm_haed" in trainable[0]:
        assert len([each for each in budget.warnings if "no parameter of this model matches" in each]) == 1
    if trainable and not lora:
        every = budget_of(unknown, settings)
        assert budget.peak.low_bytes < budget.peak.device_bytes
        assert budget.peak.high_bytes >= every.peak.high_bytes
