"""Library versions in a job: the bytes and the sentences that older ones change."""

from typing import Any

import pytest
from model_configs import llama_config

from vramtop.estimator.common.library_versions import older
from vramtop.estimator.common.sizes import MIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.formula.process_memory import context_bytes
from vramtop.estimator.job.gpu_catalogue import find_gpu, generation_of
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.job.rules.version_rules import VersionRules, steps_take_same_memory, version_rules

SIZES = llama_config(hidden=1024, mlp=2816, layers=4, heads=8, vocab=32000)
TOKENS = 2048


def job(software: dict[str, str], **tables: dict[str, Any]):
    training = {"precision": "bf16", "sequence_length": TOKENS, **tables.pop("training", {})}
    return job_from_mapping(
        {"model": {"config": SIZES}, "training": training, "software": software, **tables}, where="test"
    )


def fullest(software: dict[str, str], component: str, **tables: dict[str, Any]) -> int:
    return max(getattr(phase.components, component) for phase in estimate(job(software, **tables)).phases)


@pytest.mark.parametrize(
    ("version", "than", "expected"),
    [
        ("1.10", (2, 0), True),
        ("2.0.1+cu118", (2, 0), False),
        ("0.43.1", (0, 43, 2), True),
        ("0.43", (0, 43, 2), True),
        ("v4.50", (4, 49), False),
        ("5", (5, 0), False),
        (None, (99,), False),
    ],
)
def test_versions_compare_by_number(version: str | None, than: tuple[int, ...], expected: bool) -> None:
    assert older(version, *than) is expected


@pytest.mark.parametrize(
    ("peft", "quantization", "width"),
    [("0.5.0", "none", 4), ("0.6.0", "none", 2), ("0.11.1", "none", 2), ("0.12.0", "none", 4), ("0.11.1", "nf4", 4)],
)
def test_adapters_had_the_type_of_the_weights_from_peft_0_6_to_0_11(peft: str, quantization: str, width: int) -> None:
    tables = {"lora": {"rank": 8, "quantization": quantization}, "training": {"framework": "transformers"}}
    found = job({"peft": peft, "transformers": "4.41.2", "trl": "0.8.6"}, **tables)
    assert resolve_job(found).widths.adapter == width


def test_old_4_bit_layers_keep_their_inputs() -> None:
    """Two norms' outputs and the MLP's product; attention's output is saved already."""
    lora = {"rank": 8, "targets": ["q_proj"], "quantization": "nf4"}
    new = fullest({}, "activations", lora=lora)
    old = fullest({"bitsandbytes": "0.41.1"}, "activations", lora=lora)
    per_token = 2 * (2 * SIZES["hidden_size"] + SIZES["intermediate_size"])
    assert old - new == per_token * TOKENS * SIZES["num_hidden_layers"]
    assert fullest({"bitsandbytes": "0.43.2"}, "activations", lora=lora) == new


def test_gradients_are_kept_where_they_are_zeroed() -> None:
    def in_forward(software: dict[str, str]) -> int:
        budget = estimate(job(software))
        return budget.phase("forward").components.gradients

    assert in_forward({}) == 0
    assert in_forward({"torch": "1.13"}) == 2 * estimate(job({})).model.parameters


@pytest.mark.parametrize(("version", "per_logit"), [("4.44", 12), ("4.46", 14), ("4.49", 12), (None, 12)])
def test_bytes_per_logit_by_version_of_transformers(version: str | None, per_logit: int) -> None:
    """Forward 12, 14 or 10; backward 12 in all."""
    software = {} if version is None else {"transformers": version}
    assert fullest(software, "logits") == per_logit * TOKENS * SIZES["vocab_size"]


@pytest.mark.parametrize(
    ("gpu", "software", "mib"),
    [
        ("v100-16gb", {"torch": "1.10", "cuda": "11.2"}, 1343),
        ("a100-80gb", {"torch": "1.10"}, 1822),
        ("a100-80gb", {"torch": "2.1", "module_loading": "eager"}, 930),
        ("a100-80gb", {"torch": "2.1"}, 480),
    ],
)
def test_context_before_a_step_by_version_and_gpu(gpu: str, software: dict[str, str], mib: int) -> None:
    assert context_bytes(version_rules(job(software)), generation_of(find_gpu(gpu)), kernels=False) == mib * MIB


@pytest.mark.parametrize(("version", "expected"), [("4.51", True), ("4.52", False), ("5.1", False), (None, False)])
def test_trainers_checkpoint_units_of_fsdp1_before_version_4_52(version: str | None, expected: bool) -> None:
    assert version_rules(job({} if version is None else {"transformers": version})).checkpoints_units is expected


def test_lazily_loaded_kernels_come_with_the_first_step() -> None:
    budget = estimate(job({}))
    loading, forward = (budget.phase(name) for name in ("loading", "forward"))
    assert forward.components.context > loading.components.context
    eager = estimate(job({"module_loading": "eager"}))
    assert {phase.components.context for phase in eager.phases} == {eager.phases[0].components.context}


def test_each_stated_version_with_an_effect_is_an_assumption() -> None:
    lora = {"rank": 8, "quantization": "nf4"}
    software = {"torch": "1.10", "bitsandbytes": "0.41", "transformers": "4.30"}
    said = " ".join(estimate(job(software, lora=lora)).assumptions)
    for words in ("bitsandbytes 0.41", "torch 1.10: gradients are zeroed", "transformers 4.30", "at once"):
        assert words in said
    today = " ".join(estimate(job({}, lora=lora)).assumptions)
    assert "0.43.2 or newer" in today
    assert "zeroed" not in today


@pytest.mark.parametrize(
    ("software", "here", "alike"),
    [
        ({}, ("2.4", "4.47"), True),
        ({"transformers": "4.47.1"}, ("2.4", "4.46.3"), True),
        ({"transformers": "4.47.1"}, ("2.9", "5.2.0"), False),  # its loss copies the logits
        ({"transformers": "5.23.0", "torch": "2.13.0+cpu"}, ("2.13.1", "5.23.1"), True),
        ({"transformers": "5.2.0"}, ("2.4", "4.45.2"), False),
        ({"torch": "1.12"}, ("2.4", "5.2.0"), False),
        ({"torch": "2.4"}, ("1.12", "5.2.0"), False),
    ],
)
def test_versions_whose_steps_take_the_same_memory(software, here, alike) -> None:
    assert steps_take_same_memory(job(software), torch=here[0], transformers=here[1]) == alike


@pytest.mark.parametrize("framework", ["transformers", "torchtune", "automodel", "megatron"])
def test_a_version_of_torchtitan_or_litgpt_changes_no_job_of_another_framework(framework: str) -> None:
    rules = _rules_of_the_oldest(framework)
    flags = ("holds_predictions", "repeats_keys", "gathers_with_root", "chains_norms", "leaves_loss_to_eager")
    assert not [name for name in (*flags, "runs_longest_first") if getattr(rules, name)]
    assert [name for name in flags if getattr(_rules_of_the_oldest("torchtitan"), name)] == list(flags)
    assert _rules_of_the_oldest("litgpt").runs_longest_first


def _rules_of_the_oldest(framework: str) -> VersionRules:
    return version_rules(job({"torchtitan": "0.0.1", "litgpt": "0.1"}, training={"framework": framework}))
