"""LitGPT's commands as its own parser resolves them (jsonargparse, LitGPT 0.5.13), and the models that it builds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.estimation import estimate
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

Read = Callable[..., JobReading]
LLAMA = "meta-llama/Llama-3.2-1B"
LENGTH = "--train.max_seq_length 64"


def values(reading: JobReading, *keys: str) -> tuple[Any, ...]:
    return tuple(reading.value(key) for key in keys)


RANKS = ("parallel.strategy", "parallel.data_shard", "parallel.data_replicate", "training.gradient_accumulation")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (f"finetune_full {LLAMA}", (None, 1, None, 16)),
        (f"finetune_full {LLAMA} --devices 2", ("fsdp1", 2, None, 8)),
        (f"finetune_full {LLAMA} --devices=2 --num_nodes=2", ("fsdp1", 4, None, 4)),
        (f"finetune_full {LLAMA} --devices auto", ("fsdp1", 4, None, 4)),
        (f"finetune_full {LLAMA} --devices -1", ("fsdp1", 4, None, 4)),
        (f"finetune_lora {LLAMA} --devices 2", ("fsdp2", 2, None, 8)),
        (f"pretrain {LLAMA} --devices 2 --num_nodes 2", ("fsdp1", 2, 2, 32)),
        (f"pretrain {LLAMA}", ("fsdp1", 4, 1, 32)),
    ],
)
def test_devices_decide_and_not_the_visible_gpus(read: Read, line: str, found: tuple[Any, ...]) -> None:
    reading = read(f"litgpt {line} {LENGTH}", CUDA_VISIBLE_DEVICES="0,1,2,3")
    assert values(reading, *RANKS) == found


def test_worker_that_lightning_started_knows_how_many_there_are(read: Read) -> None:
    line = f"litgpt finetune_full {LLAMA} {LENGTH} --devices auto"
    assert values(read(line, WORLD_SIZE="8", LOCAL_RANK="3"), "parallel.data_shard") == (8,)
    assert read(line).missing == ("parallel.data_shard",)


def test_lora_before_version_0_5_11_uses_fsdp1(tmp_path: Path) -> None:
    line = ["litgpt", "finetune_lora", LLAMA, *LENGTH.split(), "--devices", "2", "--precision", "bf16-true"]
    old = read_launch(line, environ={}, cwd=tmp_path, versions={"litgpt": "0.5.9"})
    new = read_launch(line, environ={}, cwd=tmp_path, versions={"litgpt": "0.5.11"})
    assert values(old, "parallel.strategy", "parallel.reduce_dtype") == ("fsdp1", "bf16")
    assert values(new, "parallel.strategy", "parallel.reduce_dtype") == ("fsdp2", "bf16")


def test_mixed_precision_on_several_devices(read: Read) -> None:
    full = read(f"litgpt finetune_full {LLAMA} {LENGTH} --devices 2")
    assert values(full, "training.precision", "parallel.reduce_dtype") == ("bf16-mixed", "bf16")
    lora = read(f"litgpt finetune_lora {LLAMA} {LENGTH} --devices 2")
    assert lora.value("parallel.reduce_dtype") is None
    assert lora.job().unsure.weights == "more"


@pytest.mark.parametrize("place", ["finetune_lora --lora_r 32 NAME", "finetune_lora NAME --lora_r 32"])
def test_the_models_name_is_no_value_of_a_flag(read: Read, place: str) -> None:
    reading = read(f"litgpt {place.replace('NAME', LLAMA)} {LENGTH}")
    assert values(reading, "model.id", "lora.rank") == (LLAMA, 32)


def test_shortened_names_of_options_are_a_doubt(read: Read) -> None:
    reading = read(f"litgpt finetune_full {LLAMA} {LENGTH} --dev 2")
    assert "--dev on the command line may stand for --devices; it is not counted." in reading.warnings
    assert reading.job().unsure.weights == "either"


@pytest.mark.parametrize(
    ("recipe", "parameters", "trained"),
    [("finetune_full", 1_498_482_688, 1_498_482_688), ("finetune_lora", 1_498_482_688, 851_968)],
)
def test_head_is_not_tied(read: Read, recipe: str, parameters: int, trained: int) -> None:
    """Figures: parameters that LitGPT's own modules have on the meta device, adapters not among the model's."""
    budget = estimate(read(f"litgpt {recipe} {LLAMA} {LENGTH}").job(), method="formula")
    assert (budget.model.parameters, budget.model.trainable_parameters) == (parameters, trained)


def test_head_is_not_tied_where_the_config_leaves_it_to_transformers(read: Read, tmp_path: Path) -> None:
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "gemma").mkdir()
    (tmp_path / "gemma" / "config.json").write_text(json.dumps(shape | {"model_type": "gemma", "vocab_size": 1000}))
    assert read(f"litgpt finetune_full ./gemma {LENGTH}").value("model.config")["tie_word_embeddings"] is False


PYTHIA_14M = (
    '{"model_type": "gpt_neox", "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 6,'
    ' "num_attention_heads": 4, "vocab_size": 50304, "max_position_embeddings": 512, "tie_word_embeddings": false,'
    ' "hidden_act": "gelu"}'
)


@pytest.mark.parametrize(
    ("model", "switch", "trained"),
    [
        ("./pythia", "lora_mlp", 43_008),
        ("./pythia", "lora_projection", 18_432),
        ("./pythia", "lora_head", 214_016),
        ("microsoft/phi-2", "lora_mlp", 4_587_520),
        ("microsoft/phi-2", "lora_projection", 1_966_080),
        (LLAMA, "lora_mlp", 2_392_064),
        ("microsoft/Phi-3-mini-4k-instruct", "lora_mlp", 5_898_240),
        ("mistralai/Mixtral-8x7B-v0.1", "lora_mlp", 58_852_352),
    ],
)
def test_switches_of_lora_mean_the_layers_of_the_model(
    read: Read, tmp_path: Path, model: str, switch: str, trained: int
) -> None:
    """Figures: what LitGPT's own modules train on the meta device."""
    (tmp_path / "pythia").mkdir()
    (tmp_path / "pythia" / "config.json").write_text(PYTHIA_14M)
    reading = read(f"litgpt finetune_lora {model} {LENGTH} --lora_r 4 --{switch} true")
    assert estimate(reading.job(), method="formula").model.trainable_parameters == trained


def test_lora_of_experts_and_of_unknown_models(read: Read) -> None:
    line = f"litgpt finetune_lora NAME {LENGTH} --lora_mlp true"
    experts = read(line.replace("NAME", "mistralai/Mixtral-8x7B-v0.1"))
    assert {"w1", "w2", "w3", "gate"} <= set(experts.value("lora.targets"))
    assert {"gate_proj", "fc1", "dense_h_to_4h"} <= set(read(line.replace("NAME", "some/model")).value("lora.targets"))


def test_adapter_methods_are_a_doubt(read: Read) -> None:
    reading = read(f"litgpt finetune_adapter_v2 {LLAMA} {LENGTH}")
    assert values(reading, "lora.rank", "training.trainable") == (None, None)
    assert reading.job().unsure.gradients == "less"
    assert any("adapter methods are not read" in warning for warning in reading.warnings)


def test_tied_embeddings_are_kept_where_they_are_asked_for(read: Read) -> None:
    assert (
        read(f"litgpt pretrain {LLAMA} {LENGTH} --devices 1 --train.tie_embeddings true").value("model.config") is None
    )


def test_model_that_is_written_out_is_asked_for(read: Read, tmp_path: Path) -> None:
    reading = read(f"litgpt pretrain x {LENGTH} --devices 1 --model_config.n_layer 12")
    assert "model.id" in reading.missing
    assert any("--model_config.n_layer" in each and "give model.config" in each for each in reading.warnings)
    (tmp_path / "model_config.yaml").write_text("n_layer: 12\n")
    assert "model.id" in read(f"litgpt finetune_full {tmp_path} {LENGTH}").missing
