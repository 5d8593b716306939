"""LLaMA-Factory's version 1, which is not read, and options of the tools that freeze parameters."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.readers.config_file import tool_of_file
from vramtop.estimator.readers.source.evidence import JobReading

Read = Callable[..., JobReading]
MODEL = "Qwen/Qwen3-0.6B"
VERSION_1 = f"""
model: {MODEL}
model_class: llm
kernel_config:
  name: auto
quant_config: null
dist_config:
  name: fsdp2
  dcp_path: null
train_dataset: data/v1_sft_demo.yaml
output_dir: outputs/test_fsdp2
micro_batch_size: 2
cutoff_len: 1024
"""


@pytest.mark.parametrize(
    ("line", "environ"),
    [
        ("llamafactory-cli sft v1.yaml", {}),
        ("llamafactory-cli sft --model org/model", {"USE_V1": "1"}),
        ("python -u /s/llamafactory/v1/launcher.py sft v1.yaml micro_batch_size=3", {"RANK": "1"}),
    ],
)
def test_version_1_is_refused_in_a_sentence(read: Read, tmp_path: Path, line: str, environ: dict[str, str]) -> None:
    (tmp_path / "v1.yaml").write_text(VERSION_1)
    with pytest.raises(CannotTellError, match=r"version 1 is not read: rehearse it"):
        read(line, **environ)
    assert tool_of_file(tmp_path / "v1.yaml") == "LLaMA-Factory"


FREEZE_V0 = f"model_name_or_path: {MODEL}\nstage: sft\nfinetuning_type: freeze\nbf16: true\n"


def test_vision_tower_and_projector_are_frozen_by_default(read: Read, tmp_path: Path) -> None:
    folder = tmp_path / "vlm"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llava", "text_config": {}, "vision_config": {}}')
    text = "model_name_or_path: ./vlm\nstage: sft\nfinetuning_type: full\n"
    (tmp_path / "x.yaml").write_text(text)
    frozen = read("llamafactory-cli train x.yaml").value("training.trainable")
    assert {"!*vision_tower*", "!*multi_modal_projector*"} <= set(frozen)
    (tmp_path / "x.yaml").write_text(f"{text}freeze_multi_modal_projector: false\n")
    assert "!*multi_modal_projector*" not in read("llamafactory-cli train x.yaml").value("training.trainable")


def test_which_layers_freezing_leaves_to_train_is_a_doubt(read: Read, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(FREEZE_V0.replace(MODEL, "some/model"))
    reading = read("llamafactory-cli train x.yaml")
    assert reading.value("training.trainable") is None
    assert reading.job().unsure.optimizer == "less"
    (tmp_path / "x.yaml").write_text(FREEZE_V0)
    assert estimate(read("llamafactory-cli train x.yaml").job(), method="formula").model.parameters == 596_049_920


AXOLOTL = "base_model: Qwen/Qwen3-0.6B\nsequence_len: 64\nmicro_batch_size: 1\n"
SWIFT = "swift sft --model Qwen/Qwen3-0.6B --max_length 64 --tuner_type full"


@pytest.fixture
def vision_model(tmp_path: Path) -> str:
    (tmp_path / "vlm").mkdir()
    (tmp_path / "vlm" / "config.json").write_text('{"model_type": "llava", "text_config": {}, "vision_config": {}}')
    return "./vlm"


def axolotl(read: Read, folder: Path, settings: str) -> JobReading:
    (folder / "x.yaml").write_text(AXOLOTL + settings)
    return read("axolotl train x.yaml")


@pytest.mark.parametrize(
    "line",
    [
        "llamafactory-cli train --stage sft --bf16 true --cutoff_len 64 --model_name_or_path",
        "swift sft --max_length 64 --model",
    ],
)
def test_tools_load_a_multimodal_model_whole_and_adapt_its_language_part(
    read: Read, vision_model: str, line: str
) -> None:
    reading = read(f"{line} {vision_model}")
    assert (reading.value("model.task"), reading.job().unsure.activations) == ("image-text-to-text", "less")
    assert read(f"{line} Qwen/Qwen3-0.6B").value("model.task") is None


def test_axolotl_patterns_of_what_trains_are_a_doubt(read: Read, tmp_path: Path) -> None:
    for settings in ("unfrozen_parameters:\n- ^lm_head.weight$\n", "spectrum_top_fraction: 0.5\n"):
        reading = axolotl(read, tmp_path, settings)
        assert reading.value("training.trainable") is None
        assert reading.job().unsure.optimizer == "less"
        assert reading.job({"training.trainable": ["lm_head"]}).unsure.optimizer == "no"


def test_axolotl_freezes_encoders(read: Read, tmp_path: Path) -> None:
    assert "!*vision_tower*" in axolotl(read, tmp_path, "freeze_mm_modules: true\n").value("training.trainable")


@pytest.mark.parametrize(
    ("flags", "unsure"),
    [
        ("", "no"),
        ("--freeze_parameters model.embed_tokens model.norm", "less"),
        ("--freeze_parameters_ratio 1 --trainable_parameters lm_head", "less"),
        ("--freeze_parameters_regex layers", "less"),
    ],
)
def test_parameters_that_swift_freezes_are_a_doubt(read: Read, flags: str, unsure: str) -> None:
    assert read(f"{SWIFT} {flags}").job().unsure.gradients == unsure


def test_swift_freezes_the_vision_tower_by_default(read: Read, vision_model: str) -> None:
    line = SWIFT.replace("Qwen/Qwen3-0.6B", vision_model)
    frozen = read(line).value("training.trainable")
    assert {"!*vision_tower*", "!*multi_modal_projector*"} <= set(frozen)
    assert "!*multi_modal_projector*" not in read(f"{line} --freeze_aligner false").value("training.trainable")
    assert "!*language_model*" in read(f"{line} --freeze_llm true").value("training.trainable")


@pytest.mark.parametrize(
    ("settings", "doubt"),
    [
        ("", "less"),
        ("gradient_checkpointing: true\n", "no"),
        ("lora_mlp_kernel: false\n", "no"),
        ("load_in_8bit: true\n", "no"),
        ("trust_remote_code: true\n", "no"),
    ],
)
def test_axolotl_uses_its_own_lora_kernels_by_default(read: Read, tmp_path: Path, settings: str, doubt: str) -> None:
    lora = "adapter: lora\nlora_r: 8\nlora_target_linear: true\n"
    assert axolotl(read, tmp_path, lora + settings).job().unsure.activations == doubt


def test_copies_that_train_beside_adapters(read: Read, tmp_path: Path) -> None:
    lora = "adapter: lora\nlora_r: 8\nlora_target_linear: true\ngradient_checkpointing: true\n"
    head = axolotl(read, tmp_path, f"{lora}lora_modules_to_save: [lm_head]\n")
    assert head.value("training.trainable") == ["*lm_head.*"]
    assert head.job().unsure.optimizer == "no"
    both = read("swift sft --model Qwen/Qwen3-0.6B --max_length 64 --modules_to_save lm_head embed_tokens")
    assert both.value("training.trainable") == ["*lm_head.*", "*embed_tokens.*"]
    assert both.job().unsure.optimizer == "more"  # two copies even where they share their weight
    other = axolotl(read, tmp_path, f"{lora}lora_modules_to_save: [classifier]\n")
    assert (other.value("training.trainable"), other.job().unsure.optimizer) == (None, "more")
