"""Scripts of models that are given images or audio: they take on the CPU what their rehearsal says."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from real_run import real_peak

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.program.media_script import media_script
from vramtop.estimator.program.named_models import InputSizes, NamedModel, find_named_model, named_models
from vramtop.estimator.trace.rehearsal import rehearse
from vramtop.estimator.worker.request.tasks import auto_class_name

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}
TEXT = {**SMALL, "num_key_value_heads": 2, "vocab_size": 512, "rope_parameters": ROPE}
TOKENS = {"image_token_id": 500, "video_token_id": 501, "vision_start_token_id": 502, "vision_end_token_id": 503}
EYES = {"depth": 2, "num_heads": 2, "out_hidden_size": 64, "hidden_size": 64, "intermediate_size": 128}
SPEECH = {**SMALL, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
WHISPER = {
    "d_model": 64,
    **{f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in (
        ("layers", 2), ("attention_heads", 2), ("ffn_dim", 128)
    )},
    "vocab_size": 51865,
    "num_mel_bins": 80,
}  # fmt: skip
SHRUNKEN: dict[str, dict[str, Any]] = {
    "vit-base": {**SMALL, "image_size": 64},
    "clip": {"text_config": SMALL, "vision_config": {**SMALL, "image_size": 64}, "projection_dim": 32},
    "dinov2-small": {**SMALL, "image_size": 56, "patch_size": 14},
    "siglip": {"text_config": SMALL, "vision_config": {**SMALL, "image_size": 64}},
    "whisper-tiny": WHISPER,
    "wav2vec2": SPEECH,
    "qwen2.5-vl-3b": {**TOKENS, "text_config": TEXT, "vision_config": {**EYES, "fullatt_block_indexes": [1]}},
}
BATCH = 2


def shrunken(name: str) -> Job:
    model = find_named_model(name)
    assert model is not None
    config = {"model_type": model.config["model_type"], **SHRUNKEN[name]}
    spec = {"id": model.id, "task": model.task, "config": config}
    training = {"precision": "fp32", "micro_batch": BATCH, "optimizer": "adamw"}
    return job_from_mapping({"model": spec, "training": training}, where="job")


def script_of(job: Job, **options: Any) -> str:
    return media_script(job, resolve_model(job.model), **options)


@pytest.mark.parametrize(
    "name", ["vit-base", *(pytest.param(name, marks=pytest.mark.slow) for name in SHRUNKEN if name != "vit-base")]
)
def test_its_rehearsal_takes_what_a_real_run_takes(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = script_of(shrunken(name), stated=set(), steps=3)
    Path("train.py").write_text(script, encoding="utf-8")
    found = rehearse([sys.executable, "train.py"])
    on_gpu = real_peak("train.py", ranks=None) - host_bytes(script)
    assert found.allocated_bytes - found.workspace_bytes == pytest.approx(on_gpu, rel=0.002)


def host_bytes(script: str) -> int:
    """Return the bytes of an item and of the next batch, which accelerate has made on the host already."""
    names: dict[str, Any] = {}
    exec(script.partition("arguments = ")[0], names)  # noqa: S102 - the script that is tested
    from transformers import default_data_collator

    item = names["item"]
    batch = names.get("collate", default_data_collator)([item] * BATCH)
    tensors = [each for each in (*item.values(), *batch.values()) if hasattr(each, "nbytes")]
    return sum(-(-each.nbytes // 512) * 512 for each in tensors)


@pytest.mark.parametrize("name", ["vit-base", "whisper-tiny", "clip"])
def test_it_has_the_parameters_that_are_published(name: str) -> None:
    model = find_named_model(name)
    assert model is not None
    assert built_parameters(model) == model.parameters


@pytest.mark.slow
@pytest.mark.parametrize("model", named_models(), ids=lambda model: model.label)
def test_every_model_has_the_parameters_that_are_published(model: NamedModel) -> None:
    assert built_parameters(model) == model.parameters


def built_parameters(model: NamedModel) -> int:
    import torch
    import transformers

    config = {key: value for key, value in model.config.items() if key != "torch_dtype"}
    with torch.device("meta"):
        built = getattr(transformers, auto_class_name(model.task)).from_config(
            transformers.AutoConfig.for_model(config.pop("model_type"), **config)
        )
    return sum(each.numel() for each in built.parameters())


def test_a_conversation_has_the_tokens_that_its_images_take() -> None:
    sizes = InputSizes(images=2, height=1024, width=512)
    text = script_of(shrunken("qwen2.5-vl-3b"), sizes=sizes, stated=set())
    # 1024 and 512 pixels are scaled to whole windows of 28: 37 x 28 and 18 x 28, four patches for each token
    assert "image = [502] + [500] * 666 + [503]" in text
    assert '"pixel_values": torch.rand(5328, 1176),' in text
    assert '"image_grid_thw": torch.tensor([[1, 74, 36]] * 2),' in text
    assert "[5] * 512)" in text


@pytest.mark.parametrize(
    ("name", "sizes", "said"),
    [
        ("vit-base", InputSizes(height=384, width=384), "takes images of 64 x 64 pixels"),
        ("vit-base", InputSizes(images=2), "one image in each example; --batch N"),
        ("vit-base", InputSizes(seconds=5), "--seconds means nothing"),
        ("wav2vec2", InputSizes(images=1), "--images and --resolution mean nothing"),
        ("whisper-tiny", InputSizes(seconds=5), "pads or cuts audio to 30 seconds"),
    ],
)
def test_a_size_that_the_model_does_not_take_is_refused(name: str, sizes: InputSizes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        script_of(shrunken(name), sizes=sizes)


def test_images_do_not_fit_in_a_shorter_sequence() -> None:
    job = shrunken("qwen2.5-vl-3b")
    short = msgspec.structs.replace(job, training=msgspec.structs.replace(job.training, sequence_length=1024))
    with pytest.raises(InputError, match="the images take 1,371 tokens, which do not fit in --seq-len 1,024"):
        script_of(short)
