"""Facts of a built model besides its parameters: ties, buffers, experts, plans, peft's adapters, bitsandbytes."""

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
import transformers
from model_configs import small_config
from slow_cases import quick_every
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.formula.closed_form import closed_form
from vramtop.estimator.job.job import Job, Lora, ModelSpec, Training
from vramtop.estimator.job.rules.dtype_widths import quantized_bytes, tensor_bytes
from vramtop.estimator.model.adapters import adapter_groups_by_rule
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.inventory import Inventory, ParameterGroup
from vramtop.estimator.model.read_architecture import read_architecture
from vramtop.estimator.trace.exact_parameter_count import InventoryAnswer, inventory_from_answer
from vramtop.estimator.trace.worker_process import convert_answer

FAMILIES = ("llama", "phi3", "gpt_neox", "gpt2", "t5", "bert", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3")
CONFIGS = {name: small_config(name) for name in (*FAMILIES, "gpt_oss")}
CONFIGS["llama"]["tie_word_embeddings"] = False
CONFIGS["llama-tied"] = small_config("llama", tie_word_embeddings=True)
LLAMA = CONFIGS["llama"]
TASKS: dict[str, Any] = {"t5": "seq2seq-lm", "bert": "masked-lm"}
Count = Callable[..., Inventory]


@pytest.fixture
def count(ask_worker: Callable[[dict[str, Any]], dict[str, Any]]) -> Count:
    """Return the inventory of the built model."""

    def exact(config: dict[str, Any], task: str = "causal-lm", lora: Lora | None = None) -> Inventory:
        request: dict[str, Any] = {"op": "inventory", "config": config, "task": task}
        if lora:
            request["lora"] = {"rank": lora.rank, "targets": lora.targets}
        return inventory_from_answer(convert_answer(ask_worker(request), InventoryAnswer))

    return exact


def test_ties_buffers_types_and_plans(count: Count) -> None:
    tied, gpt2, mixtral = (count(CONFIGS[name]) for name in ("llama-tied", "gpt2", "mixtral"))

    assert tied.tied == (("model.embed_tokens.weight", "lm_head.weight"),)
    assert count(LLAMA).tied == ()
    rotary = next(b for b in tied.buffers if b.name.endswith("inv_freq"))
    assert rotary.tensor_bytes == 4 * 4
    assert mixtral.elements("expert") == 3 * 4 * 3 * 64 * 160
    real = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**CONFIGS["gpt2"], "model_type": "gpt2"}))
    assert gpt2.buffer_bytes == sum(b.numel() * b.element_size() for b in real.buffers())


def test_buffers_count_as_weights_of_the_exact_budget(count: Count) -> None:
    config = CONFIGS["gpt2"] | {"n_positions": 1024}
    job = Job(model=ModelSpec(config=config), training=Training(precision="bf16"))
    arch, counted, shape = read_architecture(config), count(config), count_parameters(read_architecture(config))
    weights = [closed_form(job, arch, found).phases[0].components.weights for found in (counted, shape)]
    assert weights[0] - weights[1] == counted.buffer_bytes
    assert weights[1] == 2 * shape.parameters


TARGETS: tuple[Any, ...] = (
    "all-linear",
    ["q_proj", "v_proj"],
    ["gate_proj", "up_proj", "down_proj"],
    ["q_proj", "w1", "w2", "w3"],
    ["self_attn.k_proj"],
    ["qkv_proj"],
    ["query_key_value", "dense"],
    ["c_attn", "c_proj"],
    ["q", "v", "wo"],
    ["lm_head"],
    ["gate_proj"],
)


def tally(groups: tuple[ParameterGroup, ...]) -> Counter[tuple[str, tuple[int, ...]]]:
    found: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for group in groups:
        found[group.name.rpartition(".lora_")[2], group.shape] += group.repeat
    return found


@pytest.mark.parametrize("family", quick_every(6, CONFIGS))
def test_the_rules_for_adapters_are_those_of_peft(count: Count, family: str) -> None:
    """Fused projections, GPT-2's transposed layers, routers, and experts that transformers holds in one tensor."""
    task = TASKS.get(family, "causal-lm")
    shape, compared = count_parameters(read_architecture(CONFIGS[family], task)), 0
    for targets in TARGETS:
        lora = Lora(rank=8, targets=targets)
        try:
            by_rule = tuple(adapter_groups_by_rule(shape, lora))
        except InputError:
            with pytest.raises(CannotTellError, match="peft cannot adapt this model"):
                count(CONFIGS[family], task, lora)
            continue
        by_peft = count(CONFIGS[family], task, lora).adapters
        assert by_peft is not None
        assert tally(by_peft) == tally(by_rule), targets
        compared += 1
    assert compared >= 2


def test_the_exact_budget_takes_pefts_own_count(count: Count) -> None:
    job = Job(model=ModelSpec(config=CONFIGS["mixtral"]), lora=Lora(rank=8, targets="all-linear"))
    counted = count(CONFIGS["mixtral"], lora=job.lora)
    budget = closed_form(job, read_architecture(CONFIGS["mixtral"]), counted, method="exact")
    assert budget.model.trainable_parameters == sum(group.elements for group in counted.adapters)
    assert budget.model.parameters == counted.parameters


@pytest.mark.parametrize("family", CONFIGS)
def test_the_layers_that_bitsandbytes_replaces_are_those_of_transformers(count: Count, family: str) -> None:
    task = TASKS.get(family, "causal-lm")
    auto = {"masked-lm": "AutoModelForMaskedLM", "seq2seq-lm": "AutoModelForSeq2SeqLM"}.get(
        task, "AutoModelForCausalLM"
    )
    fields = dict(CONFIGS[family])
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        model = getattr(transformers, auto).from_config(config)
    kept = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    replaced = sum(
        module.weight.numel()
        for name, module in model.named_modules()
        if type(module).__name__ in ("Linear", "Conv1D") and should_convert_module(name, kept)
    )

    counted = count(CONFIGS[family], task)
    assert sum(group.elements for group in counted.groups if group.quantized) == replaced
    shape = count_parameters(read_architecture(CONFIGS[family], task))
    by_rule = sum(
        group.elements
        for group in shape.groups
        if group.linear and group.role != "head" and group.quantized is not False
    )
    assert by_rule == pytest.approx(replaced, rel=0.05)


@pytest.mark.parametrize(
    ("shape", "kind", "sizes"),
    [
        # as bitsandbytes 0.50.2 made them of weights of these shapes: packed, absmax, code, then the nested state
        ((256, 512), "nf4", (65_536, 4 * 2048, 64)),
        ((256, 512), "nf4-double", (65_536, 2048, 64, 4 * 8, 1024, 4)),
        ((100, 70), "nf4", (3_500, 4 * 110, 64)),
        ((100, 70), "nf4-double", (3_500, 110, 64, 4, 1024, 4)),
        ((4096, 4096), "nf4-double", (8_388_608, 262_144, 64, 4 * 1024, 1024, 4)),
        ((256, 512), "int8", (131_072, 4 * 256)),
    ],
)
def test_bytes_of_quantized_weights(shape: tuple[int, ...], kind: str, sizes: tuple[int, ...]) -> None:
    assert tensor_bytes(shape, kind) == sizes
    whole = quantized_bytes(shape, kind)
    assert whole % 512 == 0
    assert sum(sizes) <= whole < sum(sizes) + 512 * len(sizes)
    assert quantized_bytes(shape[::-1], kind, transposed=True) == whole


@pytest.mark.parametrize("kind", ["nf4", "nf4-double", "int8"])
def test_quantized_weights_of_the_exact_budget(count: Count, kind: Any) -> None:
    lora = Lora(rank=8, targets=["q_proj"], quantization=kind)
    job = Job(model=ModelSpec(config=LLAMA), lora=lora, training=Training(precision="bf16"))
    counted = count(LLAMA, lora=lora)
    budget = closed_form(job, read_architecture(LLAMA), counted, method="exact")
    linear = [g for g in counted.groups if g.linear and g.role != "head"]
    others = [g for g in counted.groups if g not in linear]
    assert budget.phases[0].components.weights == sum(
        (
            sum(quantized_bytes(g.shape, kind) * g.repeat for g in linear),
            sum(2 * prod(g.shape) * g.repeat for g in others),
            4 * budget.model.trainable_parameters,
            counted.buffer_bytes,
        )
    )
