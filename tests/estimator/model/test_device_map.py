"""Device maps: our placement is compared with accelerate's own functions, and so are the sizes of modules by dtype."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from accelerate import init_empty_weights
from accelerate.commands.estimate import create_empty_model  # noqa: F401  # the command that these functions serve
from accelerate.utils import get_balanced_memory, infer_auto_device_map
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.accelerate import get_balanced_memory as get_balanced_memory_of_transformers

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.job.settings import ModelSpec
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.model.inventory import Inventory
from vramtop.estimator.model.placement import Placement, place
from vramtop.estimator.model.read_architecture import read_architecture

SMALL = ("Qwen/Qwen2.5-0.5B",)
LARGE = ("gpt2", "meta-llama/Llama-3.1-8B", "mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-8B", "google/gemma-2-9b")
Built = tuple[Any, Inventory]


def built(name: str, dtype: torch.dtype = torch.bfloat16) -> Built:
    """Return a model without weights, as ``accelerate estimate-memory`` builds it, and its counted parameters."""
    config = resolve_model(ModelSpec(id=name)).config
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=dtype)
    model.tie_weights()
    return model, count_parameters(read_architecture(config, "causal-lm"))


def placed(
    inventory: Inventory,
    parallel: Mapping[str, Any],
    *,
    mode: str = "inference",
    gpu: int = 0,
    transformers: str = "5.23",
) -> Placement:
    tables = {"training": {"mode": mode, "precision": "bf16"}, "parallel": dict(parallel)}
    tables["software"] = {"transformers": transformers}
    job = resolve_job(job_from_mapping(tables, where="test"))
    return place(job, inventory, tuple(2 * group.elements for group in inventory.groups), gpu_bytes=gpu or None)


def blocks(placement: Placement) -> dict[int | str, int]:
    devices: dict[int | str, Any] = {**dict(enumerate(placement.gpus)), "cpu": placement.host, "disk": placement.disk}
    found = {name: sum(module.block for module in held) for name, held in devices.items()}
    return {name: count for name, count in found.items() if count}


def blocks_by_accelerate(
    model: Any, limits: dict[int | str, int], rule: str, balanced_memory: Any
) -> dict[int | str, int]:
    whole = list(model._no_split_modules)
    if rule != "sequential":
        limits = balanced_memory(model, limits, no_split_module_classes=whole, low_zero=rule == "balanced_low_0")
    device_map = infer_auto_device_map(model, limits, no_split_module_classes=whole, clean_result=False)
    names = [name for name, _ in model.named_modules() if re.search(r"\.(layers|h)\.\d+$", name)]
    found = (max((key for key in device_map if f"{name}.".startswith(f"{key}.")), key=len) for name in names)
    return dict(Counter(device_map[key] for key in found))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
@pytest.mark.parametrize(
    ("transformers", "balanced_memory"), [("4.57", get_balanced_memory), ("5.23", get_balanced_memory_of_transformers)]
)
def test_blocks_are_placed_as_the_libraries_place_them(name: str, transformers: str, balanced_memory: Any) -> None:
    model, inventory = built(name)
    total = 2 * sum(parameter.numel() for parameter in model.parameters())
    for rule in ("auto", "sequential", "balanced_low_0"):
        for gpus, share in ((1, 0.5), (1, 2), (2, 0.3), (2, 0.7), (2, 3), (3, 0.5), (4, 0.9), (4, 0.2)):
            limit = int(total * share)
            written = {**{str(number): limit for number in range(gpus)}, "cpu": 2**50}
            parallel = {"device_map": rule, "pipeline": gpus, "max_memory": written}
            limits: dict[int | str, int] = {**dict.fromkeys(range(gpus), limit), "cpu": 2**50}
            expected = blocks_by_accelerate(model, limits, rule, balanced_memory)
            assert blocks(placed(inventory, parallel, transformers=transformers)) == expected, (rule, gpus, share)


def test_a_table_places_each_module() -> None:
    _, inventory = built("gpt2")
    table = {"transformer.wte": 1, "transformer": 0, "transformer.h.10": "cpu", "transformer.h.11": "disk"}
    placement = placed(inventory, {"device_map": table, "pipeline": 2})
    assert blocks(placement) == {0: 10, "cpu": 1, "disk": 1}
    assert [module.name for module in placement.gpus[1]] == ["transformer.wte"]
    whole = placed(inventory, {"device_map": {"": "cuda:1"}, "pipeline": 2})
    assert blocks(whole) == {1: 12}
    split = placed(inventory, {"device_map": {"transformer.h.0.attn": 1, "transformer.h": 0}, "pipeline": 2})
    assert blocks(split) == {0: 12}


def test_a_single_gpu_keeps_a_tenth_free() -> None:
    _, inventory = built("gpt2")
    total = 2 * inventory.parameters
    assert blocks(placed(inventory, {"device_map": "auto"}, gpu=2 * total)) == {0: 12}
    assert "cpu" in blocks(placed(inventory, {"device_map": "auto"}, gpu=total))
    assert blocks(placed(inventory, {"device_map": "auto"}, gpu=total, mode="train")) == {0: 12}
    assert placed(inventory, {"device_map": "auto"}, gpu=total, mode="train").refused


def test_a_gpu_without_a_limit_gets_nothing() -> None:
    _, inventory = built("gpt2")
    limits = {"device_map": "auto", "pipeline": 2, "max_memory": {"1": "10GiB"}}
    assert blocks(placed(inventory, limits)) == {1: 12}
    with pytest.raises(InputError, match="'much' is not understood"):
        placed(inventory, {**limits, "max_memory": {"1": "much"}})


def test_modules_are_placed_before_preparation_for_k_bits_casts_them() -> None:
    tables: dict[str, Any] = {
        "model": {"id": "meta-llama/Llama-3.1-8B"},
        "training": {"precision": "bf16", "sequence_length": 64},
        "parallel": {"device_map": "auto", "pipeline": 4},
        "target": {"gpu": "h100"},
    }
    for preparation in (True, False):
        lora = {"rank": 8, "quantization": "nf4", "kbit_preparation": preparation}
        budget = estimate(job_from_mapping({**tables, "lora": lora}, where="test"))
        assert any("the GPUs have 3, 22, 7, 0 blocks" in each for each in budget.assumptions)
