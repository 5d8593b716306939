"""Attention that a script's own classes compute, that it patches, and that old versions of libraries take."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.source.evidence import JobReading

OWN = """
import torch
from transformers import LlamaConfig, PreTrainedModel

class OwnAttention(torch.nn.Module):
    def forward(self, q, k, v):
        # COMPUTED
        return torch.nn.functional.softmax(q @ k.transpose(2, 3), dim=-1) @ v

class OwnPreTrainedModel(PreTrainedModel):
    config_class = LlamaConfig
    # SUPPORTED

class OwnForCausalLM(OwnPreTrainedModel):
    pass
"""
SCRIPT = """
import transformers
from transformers import Trainer, TrainingArguments
from own import OwnForCausalLM
model = OwnForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
Trainer(model=model, args=TrainingArguments("x", per_device_train_batch_size=2)).train()
"""
LIBRARYS = SCRIPT.replace("own import Own", "transformers import Llama").replace("OwnFor", "LlamaFor")


def read(
    folder: Path, script: str, *, own: str = OWN, arguments: str = "", versions: Mapping[str, str] | None = None
) -> JobReading:
    (folder / "own.py").write_text(own)
    (folder / "train.py").write_text(script)
    return read_launch(["python", "train.py", *arguments.split()], environ={}, cwd=folder, versions=versions)


def doubts(reading: JobReading) -> set[tuple[str, str]]:
    found = {(each.component, each.direction) for each in reading.uncertainties if each.unless == "model.attention"}
    assert bool(found) == any("own.py line 8" in sentence for sentence in reading.warnings)
    return found


def test_a_class_of_its_own_without_sdpa_is_counted_as_eager(tmp_path: Path) -> None:
    reading = read(tmp_path, SCRIPT)
    assert reading.value("model.attention") == "eager"
    assert "own.py line 8" in reading.evidence()["model.attention"]
    assert doubts(reading) == {("activations", "less")}


def test_a_class_of_its_own_that_has_sdpa_takes_it(tmp_path: Path) -> None:
    reading = read(tmp_path, SCRIPT, own=OWN.replace("# SUPPORTED", "_supports_sdpa = True"))
    assert (reading.value("model.attention"), doubts(reading)) == ("sdpa", set())


def test_a_class_that_may_have_sdpa_is_doubted(tmp_path: Path) -> None:
    text = OWN.replace("# COMPUTED", "flash = torch.nn.functional.scaled_dot_product_attention")
    reading = read(tmp_path, SCRIPT, own=text)
    assert (reading.value("model.attention"), doubts(reading)) == ("sdpa", {("activations", "more")})
    refused = read(tmp_path, SCRIPT, own=text.replace("# SUPPORTED", "_supports_sdpa = False"))
    assert (refused.value("model.attention"), doubts(refused)) == ("eager", {("activations", "less")})


def test_attention_that_is_named_wins_over_the_class(tmp_path: Path) -> None:
    for argument in ("attn_implementation='flash_attention_2'", "use_flash_attention_2=True"):
        reading = read(tmp_path, SCRIPT.replace('0.5B")', f'0.5B", {argument})'))
        assert (reading.value("model.attention"), doubts(reading)) == ("flash_attention_2", set())


@pytest.mark.parametrize(
    ("versions", "attention"),
    [
        ({"transformers": "4.35.2"}, "eager"),
        ({"transformers": "4.36.0"}, "sdpa"),
        ({"transformers": "4.40.0", "torch": "2.1.0"}, "eager"),
        ({"transformers": "4.40.0", "torch": "2.1.1"}, "sdpa"),
        ({}, "sdpa"),
    ],
)
def test_sdpa_is_the_default_since_its_versions(tmp_path: Path, versions: Mapping[str, str], attention: str) -> None:
    reading = read(tmp_path, LIBRARYS, versions=versions)
    assert reading.value("model.attention") == attention
    assert all(version in reading.evidence()["model.attention"] for version in versions.values()) or attention == "sdpa"


@pytest.mark.parametrize(
    ("computed", "attention"),
    [
        ("return flash_attn_func(q, k, v)", "flash_attention_2"),
        ("return torch.nn.functional.scaled_dot_product_attention(q, k, v)", "sdpa"),
        ("return torch.softmax(q @ k, -1) @ v", "eager"),
        ("return q", None),
    ],
)
def test_attention_may_be_patched(tmp_path: Path, computed: str, attention: str | None) -> None:
    patch = (
        f"def forward(self, q, k, v):\n    {computed}\n"
        "transformers.models.llama.modeling_llama.LlamaAttention.forward = forward\n"
    )
    script = LIBRARYS.replace("model =", f"{patch}model =")
    default = {"transformers": "4.35.0"} if attention == "sdpa" else {}
    found = read(tmp_path, script, versions=default)
    assert found.value("model.attention") == (attention or "sdpa")
    assert ("LlamaAttention.forward = forward" in found.evidence()["model.attention"]) == (attention is not None)
    other = read(tmp_path, script.replace("LlamaAttention.forward", "LlamaMLP.forward"))
    assert "LlamaMLP" not in other.evidence()["model.attention"]
