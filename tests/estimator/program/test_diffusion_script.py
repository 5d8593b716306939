"""Scripts of diffusion models: they take on the CPU what their rehearsal says."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rehearsed import rehearse, rehearse_script_beside_cpu

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.program.diffusion_models import (
    DiffusionModel,
    Part,
    diffusion_models,
    find_diffusion_model,
    read_pipeline,
)
from vramtop.estimator.program.diffusion_script import diffusion_script, diffusion_words
from vramtop.estimator.program.named_models import InputSizes
from vramtop.estimator.program.training_script import How

BATCH = 2
BLOCKS = {"layers_per_block": 1, "norm_num_groups": 4}
UNET = {
    **BLOCKS,
    "block_out_channels": [32, 64],
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "attention_head_dim": 4,
}
SDXL = {"addition_embed_type": "text_time", "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 56}
HEADS = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2}
SHRUNKEN: dict[str, dict[str, Any]] = {
    "sd1.5": {**UNET, "cross_attention_dim": 8},
    "sdxl": {**UNET, **SDXL, "cross_attention_dim": 16},
    "flux": {
        **HEADS,
        "num_single_layers": 2,
        "joint_attention_dim": 16,
        "pooled_projection_dim": 8,
        "guidance_embeds": True,
        "axes_dims_rope": [4, 6, 6],
    },
    "wan-1.3b": {**HEADS, "ffn_dim": 64, "text_dim": 32},
}
CLIP = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
VAE = {**BLOCKS, "block_out_channels": [8, 8, 8, 8]}
PARTS: dict[str, dict[str, Any]] = {
    **{name: {**CLIP, "projection_dim": 8} for name in ("clip-l", "clip-l-projected", "clip-g-projected")},
    "t5-xxl": {"d_model": 16, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 2},
    "vae-sd": VAE,
    "vae-16": VAE,
}
SIDE = 256


def shrunk(model: DiffusionModel, trained: dict[str, Any]) -> DiffusionModel:
    parts = {name: model.part(name) for name in (model.vae, *model.encoders) if name is not None}
    small = {name: Part(kind=each.kind, config={**each.config, **PARTS[name]}) for name, each in parts.items()}
    return msgspec.structs.replace(model, trained=Part(kind=model.trained.kind, config=trained), own_parts=small)


def known(name: str) -> DiffusionModel:
    return find_diffusion_model(name)


def script_of(model: DiffusionModel, changes: dict[str, Any] | None = None, *, whole: bool = False, **options) -> str:
    usual = {key: value for key, value in model.usual.items() if not (whole and key.startswith("lora."))}
    job = with_changes(Job(model=model.spec), {**usual, "training.micro_batch": BATCH, **(changes or {})})
    return diffusion_script(job, model, sizes=options.pop("sizes", None), how=How(stated=set(), steps=3, **options))


def slow(name: str, *, whole: bool) -> Any:
    return pytest.param(name, whole, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("sd1.5", False),
        *(slow(name, whole=False) for name in SHRUNKEN if name != "sd1.5"),
        *(slow(name, whole=True) for name in ("sd1.5", "sdxl", "flux")),
    ],
)
def test_its_rehearsal_takes_what_a_real_run_takes(name: str, whole: bool, in_folder: Path) -> None:
    pytest.importorskip("diffusers")
    model = shrunk(known(name), SHRUNKEN[name])
    sizes = InputSizes(height=SIDE, width=SIDE, frames=9 if name == "wan-1.3b" else None)
    script = script_of(model, {"training.precision": "fp32"}, whole=whole, sizes=sizes)
    rehearse_script_beside_cpu(script, host_bytes=host_bytes(script), rel=0.005)


def host_bytes(script: str) -> int:
    """Return the bytes of an item and of the next batch, which accelerate has made on the host already."""
    import torch

    names: dict[str, Any] = {"torch": torch}
    lines = [line for line in script.splitlines() if line.startswith("item")]
    exec("\n".join(lines), names)  # noqa: S102 - the script that is tested
    sizes = [each.nbytes for each in names["item"].values()]
    return sum(-(-size * count // 512) * 512 for size in sizes for count in (1, BATCH))


@pytest.mark.slow
@pytest.mark.parametrize("model", diffusion_models(), ids=lambda model: model.label)
def test_every_model_has_the_parameters_that_are_published(model: DiffusionModel) -> None:
    diffusers = pytest.importorskip("diffusers")
    import torch

    with torch.device("meta"):
        built = getattr(diffusers, model.trained.kind)(**model.trained.config)
    assert sum(each.numel() for each in built.parameters()) == model.parameters


def test_the_parts_are_where_the_example_has_them() -> None:
    text = script_of(known("sdxl"))
    assert "# what is where, and in which type, is as in diffusers' train_text_to_image_lora_sdxl.py" in text
    assert "vae.to(device, dtype=torch.float32)" in text
    assert "text_encoder_2.to(device, dtype=weight_dtype)" in text
    assert "cast_training_params(model, dtype=torch.float32)" in text
    assert "del text_encoder" not in text
    whole = script_of(known("sdxl"), whole=True)
    assert "del text_encoder, text_encoder_2, vae" in whole
    assert "model.to(device" not in whole  # accelerate moves it, in fp32
    assert "torch.randn(4, 128, 128)" in whole
    flux = script_of(known("flux"), {"training.activation_checkpointing": "full", "lora.rank": 16})
    assert "del text_encoder, text_encoder_2" in flux
    assert "vae.to(device, dtype=weight_dtype)" in flux
    assert "model.enable_gradient_checkpointing()" in flux
    assert "r=16," in flux
    assert 'Accelerator(mixed_precision="bf16")' in flux


def test_an_example_in_words() -> None:
    assert diffusion_words(known("sd1.5"), InputSizes()) == "1 image of 512 x 512 pixels"
    assert diffusion_words(known("wan-14b"), InputSizes(frames=49)) == "49 frames of 480 x 832 pixels"
    assert "torch.randn(16, 13, 60, 104)" in script_of(known("wan-14b"), sizes=InputSizes(frames=49))


SHARDED = {"parallel.strategy": "fsdp2", "parallel.data_shard": 2}


@pytest.mark.slow
def test_a_shard_of_all_parameters_takes_its_share(in_folder: Path) -> None:
    pytest.importorskip("diffusers")
    sizes, took = InputSizes(height=SIDE, width=SIDE), []
    for changes, words in (({}, [sys.executable]), (SHARDED, ["torchrun", "--nproc-per-node", "2"])):
        script = script_of(shrunk(known("flux"), SHRUNKEN["flux"]), changes, whole=True, sizes=sizes)
        Path("train.py").write_text(script, encoding="utf-8")
        step = rehearse([*words, "train.py"]).budget.phase("optimizer step")
        took.append((step.components.weights, step.components.optimizer))
    (weights, optimizer), (shard, shard_optimizer) = took
    assert shard_optimizer == pytest.approx(optimizer / 2, rel=0.1)  # small tensors fill whole blocks
    assert shard == pytest.approx(weights / 2, rel=0.1)


@pytest.mark.parametrize(
    ("name", "sizes", "changes", "error", "said"),
    [
        ("sd1.5", {"height": 500, "width": 512}, {}, InputError, "multiples of 16 pixels"),
        ("sd1.5", {"frames": 9}, {}, InputError, "--frames means nothing"),
        ("sdxl", {"images": 2}, {}, InputError, "one image or video in each example"),
        ("wan-1.3b", {"frames": 80}, {}, InputError, "one frame and multiples of four more, such as 81"),
        ("flux", {}, {"parallel.strategy": "zero3"}, CannotTellError, "no place for parallel.strategy = zero3"),
        ("flux", {}, SHARDED, CannotTellError, "adapters keep another type than the weights"),
    ],
)
def test_what_it_does_not_take_is_refused(name: str, sizes, changes, error, said: str) -> None:
    with pytest.raises(error, match=said):
        script_of(known(name), changes, sizes=InputSizes(**sizes))


QUANTIZED = {"lora.quantization": "nf4", "lora.kbit_preparation": True}


def test_a_quantized_network_meets_no_text_encoder_on_the_gpu() -> None:
    plain, quantized = script_of(known("flux")), script_of(known("flux"), QUANTIZED)
    assert plain.index("model.to(device") < plain.index("del text_encoder")
    assert quantized.index("del text_encoder") < quantized.index("model = model.to(device)")
    assert "model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)" in quantized


@pytest.mark.slow
def test_quantized_weights_take_half_a_byte(in_folder: Path) -> None:
    pytest.importorskip("diffusers")
    pytest.importorskip("bitsandbytes")
    sizes, took = InputSizes(height=SIDE, width=SIDE), []
    for changes in ({}, QUANTIZED):
        script = script_of(shrunk(known("flux"), SHRUNKEN["flux"]), changes, sizes=sizes)
        Path("train.py").write_text(script, encoding="utf-8")
        step = rehearse([sys.executable, "train.py"]).budget.phase("optimizer step")
        took.append(step.components.weights)
    assert 0.25 < took[1] / took[0] < 0.5  # what is no linear layer has the type that it had


def test_weights_that_are_trained_are_fp32() -> None:
    with pytest.raises(CannotTellError, match="keep weights that are trained in fp32"):
        script_of(known("sd1.5"), {"training.precision": "bf16"}, whole=True)


def saved(folder: Path, pipeline: str, **unet: Any) -> Path:
    """Write what diffusers' ``save_pretrained`` writes, without weights."""
    index: dict[str, Any] = {
        "_class_name": pipeline,
        "text_encoder": ["transformers", "CLIPTextModel"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "scheduler": ["diffusers", "PNDMScheduler"],
        "safety_checker": [None, None],
    }
    folder.mkdir()
    (folder / "model_index.json").write_text(json.dumps(index))
    for name, config in (
        ("unet", {**SHRUNKEN["sd1.5"], "sample_size": 96, **unet}),
        ("vae", BLOCKS),
        ("text_encoder", {}),
    ):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({"_diffusers_version": "0.42.1", **config}))
    return folder


def test_a_pipeline_on_disk_is_built_from_its_configs(tmp_path: Path) -> None:
    folder = saved(tmp_path / "my-finetune", "StableDiffusionPipeline")
    model = read_pipeline(str(folder), {})
    assert (model.label, model.family, model.size) == ("my-finetune", "sd", (768, 768))
    text = script_of(model)
    assert f'model_config = UNet2DConditionModel.load_config("{folder}", subfolder="unet")' in text
    assert f'CLIPTextModel.config_class.from_pretrained("{folder}", subfolder="text_encoder")' in text
    assert "train_text_to_image_lora.py" in text
    assert read_pipeline(str(tmp_path), {}) is None


@pytest.mark.parametrize(
    ("pipeline", "unet"), [("KolorsPipeline", {}), ("StableDiffusionPipeline", {"in_channels": 9})]
)
def test_a_pipeline_without_a_known_script_is_refused(tmp_path: Path, pipeline: str, unet: dict[str, Any]) -> None:
    folder = saved(tmp_path / "other", pipeline, **unet)
    with pytest.raises(CannotTellError, match=rf"\({pipeline}\) for whose training no script is known"):
        read_pipeline(str(folder), {})
