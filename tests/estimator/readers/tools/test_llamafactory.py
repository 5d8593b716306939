"""LLaMA-Factory's version 1, which is not read, and the parameters that freezing leaves to train."""

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
