"""Scripts of models that are given images, audio or pairs of texts: they take on the CPU what their rehearsal says."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rehearsed import rehearse, rehearse_script_beside_cpu
from slow_cases import quick_every

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping, with_changes
from vramtop.estimator.job.settings import ModelSpec
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.program.media_script import media_script
from vramtop.estimator.program.named_models import (
    InputSizes,
    NamedModel,
    find_named_model,
    named_by_config,
    named_models,
)
from vramtop.estimator.program.training_script import How
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
PLAIN = {**SMALL, "num_key_value_heads": 2, "vocab_size": 512, "head_dim": 32}
CLIP_EYES = {"model_type": "clip_vision_model", **SMALL, "image_size": 112, "patch_size": 14}
STAGES = ["stage1", "stage2", "stage3", "stage4"]
SWIN = {"model_type": "swin", "embed_dim": 32, "depths": [1] * 4, "num_heads": [2] * 4, "out_features": STAGES}
RESNET = {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [1] * 4, "layer_type": "basic"}
DETR = {
    "d_model": 64,
    **{f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in (
        ("layers", 2), ("attention_heads", 2), ("ffn_dim", 128)
    )},
    "num_queries": 30,
    "backbone_config": {"model_type": "resnet", **RESNET, "out_features": ["stage4"]},
}  # fmt: skip
DINO = {"model_type": "dinov2", **SMALL, "num_hidden_layers": 4, "image_size": 56, "patch_size": 14}
LABELLED: dict[str, dict[str, Any]] = {
    "detr": DETR,
    "mask2former": {
        "feature_size": 32,
        "mask_feature_size": 32,
        "hidden_dim": 64,
        "encoder_feedforward_dim": 64,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "num_attention_heads": 2,
        "dim_feedforward": 64,
        "num_queries": 25,
        "train_num_points": 64,
        "backbone_config": SWIN,
    },
    "upernet": {"hidden_size": 32, "auxiliary_in_channels": 128, "auxiliary_channels": 32, "backbone_config": SWIN},
    "depth-anything": {
        "reassemble_hidden_size": 64,
        "fusion_hidden_size": 32,
        "neck_hidden_sizes": [16, 32, 48, 64],
        "backbone_config": {**DINO, "out_indices": [1, 2, 3, 4], "reshape_hidden_states": False},
    },
    "dpt": {
        **SMALL,
        "num_hidden_layers": 4,
        "image_size": 64,
        "backbone_out_indices": [0, 1, 2, 3],
        "neck_hidden_sizes": [16, 32, 48, 64],
        "fusion_hidden_size": 32,
    },
    "glpn": {
        "hidden_sizes": [16, 32, 48, 64],
        "num_attention_heads": [1, 2, 2, 2],
        "depths": [1] * 4,
        "decoder_hidden_size": 32,
    },
    "sam": {
        "vision_config": {
            **SMALL,
            "image_size": 128,
            "mlp_dim": 128,
            "output_channels": 32,
            "num_pos_feats": 16,
            "global_attn_indexes": [1],
            "window_size": 4,
        },
        "prompt_encoder_config": {"hidden_size": 32, "image_size": 128, "mask_input_channels": 8},
        "mask_decoder_config": {"hidden_size": 32, "mlp_dim": 64, "iou_head_hidden_dim": 32, "num_attention_heads": 2},
    },
}
"""Models whose labels say something of parts of an image."""
MATCHED = ("detr", "mask2former")
"""Those whose loss needs scipy."""
SHRUNKEN: dict[str, dict[str, Any]] = {
    "vit-base": {**SMALL, "image_size": 64},
    "clip": {"text_config": SMALL, "vision_config": {**SMALL, "image_size": 64}, "projection_dim": 32},
    "siglip": {"text_config": SMALL, "vision_config": {**SMALL, "image_size": 64}},
    "whisper-tiny": WHISPER,
    "all-minilm": SMALL,
    "wav2vec2": SPEECH,
    "swin-tiny": {"embed_dim": 32, "depths": [2, 2], "num_heads": [2, 2], "image_size": 56},
    "segformer-b0": {"image_size": 128, "depths": [1, 1, 1, 1]},
    "qwen2-vl-2b": {
        **TOKENS,
        "text_config": TEXT,
        "vision_config": {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 2},
    },
    "qwen3-vl-2b": {**TOKENS, "text_config": TEXT, "vision_config": {**EYES, "deepstack_visual_indexes": [0]}},
    "llava": {"image_token_index": 500, "text_config": {"model_type": "llama", **PLAIN}, "vision_config": CLIP_EYES},
    "paligemma": {
        "image_token_index": 500,
        "projection_dim": 64,
        "text_config": {"model_type": "gemma", **PLAIN},
        "vision_config": {**CLIP_EYES, "model_type": "siglip_vision_model"},
    },
    "gemma-3-4b": {
        "image_token_index": 500,
        "boi_token_index": 501,
        "eoi_token_index": 502,
        "mm_tokens_per_image": 16,
        "text_config": PLAIN,
        "vision_config": {**CLIP_EYES, "model_type": "siglip_vision_model"},
    },
    "internvl3": {
        "image_token_id": 500,
        "text_config": {"model_type": "qwen2", **PLAIN},
        "vision_config": {"model_type": "internvl_vision", **SMALL},
    },
    "smolvlm-256m": {
        "image_token_id": 500,
        "scale_factor": 2,
        "text_config": {"model_type": "llama", **PLAIN},
        "vision_config": {**SMALL, "image_size": 56, "patch_size": 14},
    },
    "llava-onevision": {
        "image_token_index": 500,
        "image_grid_pinpoints": [[56 * rows, 56 * columns] for rows in range(1, 7) for columns in range(1, 7)],
        "text_config": {"model_type": "qwen2", **PLAIN},
        "vision_config": {**CLIP_EYES, "model_type": "siglip_vision_model", "image_size": 56},
    },
    "llama-3.2-vision": {
        "image_token_index": 500,
        "text_config": {**PLAIN, "cross_attention_layers": [1], "pad_token_id": 0},
        "vision_config": {
            **SMALL,
            "num_global_layers": 1,
            "attention_heads": 2,
            "image_size": 56,
            "vision_output_dim": 128,
            "intermediate_layers_indices": [1],
        },
    },
    "pixtral": {
        "image_token_index": 500,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "text_config": {"model_type": "mistral", **PLAIN},
        "vision_config": {"model_type": "pixtral", **SMALL, "head_dim": 32},
    },
    "qwen2.5-vl-3b": {**TOKENS, "text_config": TEXT, "vision_config": {**EYES, "fullatt_block_indexes": [1]}},
}
BATCH = 2


def shrunken(name: str) -> Job:
    model = find_named_model(name)
    config = {"model_type": model.config["model_type"], **(SHRUNKEN | LABELLED)[name]}
    # where the attention of a real run has no values, which these losses check
    attention = {"attention": "eager"} if model.task == "object-detection" else {}
    spec = {"id": model.id, "task": model.task, "config": config, **attention}
    training = {"precision": "fp32", "micro_batch": BATCH, "optimizer": "adamw"}
    return job_from_mapping({"model": spec, "training": training}, where="job")


def script_of(job: Job, **options: Any) -> str:
    return media_script(job, resolve_model(job.model), sizes=options.pop("sizes", None), how=How(**options))


@pytest.mark.slow
@pytest.mark.usefixtures("quick_rehearsals")
@pytest.mark.parametrize("name", ["vit-base", "llava"])
def test_fsdp_wraps_the_blocks_that_it_can(name: str, in_folder: Path) -> None:
    """Models name blocks that they do not hold, and those around their input embeddings, which accelerate wraps too."""
    job = with_changes(shrunken(name), {"parallel": {"strategy": "fsdp2", "data_shard": 2}})
    Path("train.py").write_text(script_of(job, stated=set(), steps=3), encoding="utf-8")
    start = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
    assert rehearse([sys.executable, *start], gpu=find_gpu("h100-80gb")).budget.method == "rehearsed"


@pytest.mark.usefixtures("quick_rehearsals")
@pytest.mark.parametrize(
    "name", ["vit-base", *(pytest.param(name, marks=pytest.mark.slow) for name in SHRUNKEN if name != "vit-base")]
)
def test_its_rehearsal_takes_what_a_real_run_takes(name: str, in_folder: Path) -> None:
    script = script_of(shrunken(name), stated=set(), steps=3)
    near = 0.006 if name == "swin-tiny" else 0.002  # 24 KiB more, of which the tensor is not known
    rehearse_script_beside_cpu(script, host_bytes=host_bytes(script), rel=near)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_rehearsals")
@pytest.mark.parametrize("name", LABELLED)
def test_labels_of_parts_of_an_image_take_what_a_real_run_takes(name: str, in_folder: Path) -> None:
    if name in MATCHED:
        pytest.importorskip("scipy", reason="transformers' losses match objects with scipy")
    sizes = {"sam": InputSizes(), "depth-anything": InputSizes(height=112, width=168)}
    sizes["dpt"] = InputSizes(height=128, width=128)
    small = InputSizes(height=128, width=160)
    script = script_of(shrunken(name), stated=set(), steps=3, sizes=sizes.get(name, small))
    rehearse_script_beside_cpu(script, host_bytes=host_bytes(script))


def host_bytes(script: str) -> int:
    """Return the bytes of an item and of the next batch, which accelerate has made on the host already.

    Labels that a batch has in a list are the item's own on the host, and copies on the GPU.
    """
    names: dict[str, Any] = {}
    exec(script.partition("arguments = ")[0], names)  # noqa: S102 - the script that is tested
    from torch.utils._pytree import tree_leaves
    from transformers import default_data_collator

    item = [each for each in tree_leaves(names["item"]) if hasattr(each, "nbytes")]
    batch = tree_leaves(names.get("collate", default_data_collator)([names["item"]] * BATCH))
    own = {id(each) for each in item}
    stacked = [each for each in batch if hasattr(each, "nbytes") and id(each) not in own]
    copied = [each for each in batch if id(each) in own]
    return sum(map(_block, [*item, *stacked])) - sum(map(_block, copied))


def _block(tensor: Any) -> int:
    return -(-tensor.nbytes // 512) * 512


def test_labels_are_those_that_the_model_takes() -> None:
    text = script_of(shrunken("detr"), stated=set())
    assert '"pixel_mask": torch.ones(800, 1333, dtype=torch.long),' in text
    assert '"class_labels": torch.zeros(objects, dtype=torch.long), "boxes": torch.rand(objects, 4)},' in text
    assert "import scipy  # noqa: F401 - matches objects in the loss" in text
    assert "import timm" not in text  # its backbone is transformers' own here
    assert '"mask_labels": torch.randint(2, (objects, 1024, 1024)).float(),' in script_of(shrunken("mask2former"))
    assert "trainer = DepthTrainer(" in script_of(shrunken("depth-anything"))
    assert "trainer = Trainer(" in script_of(shrunken("glpn"))  # which has a loss
    assert "remove_unused_columns=False" in script_of(shrunken("sam"))
    with pytest.raises(InputError, match="takes images of 128 x 128 pixels"):
        script_of(shrunken("sam"), sizes=InputSizes(height=64, width=64))
    with pytest.raises(InputError, match="takes square images only"):
        script_of(shrunken("dpt"), sizes=InputSizes(height=64, width=96))


def test_a_folder_has_the_size_that_its_processor_makes(tmp_path: Path) -> None:
    config = {"model_type": "detr", "architectures": ["DetrForObjectDetection"], "num_labels": 3}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    spec = ModelSpec(id=str(tmp_path))
    assert named_by_config(resolve_model(spec)).processed is None
    for processor, size in (
        ({"size": {"shortest_edge": 480, "longest_edge": 640}}, (480, 640)),
        ({"size": 800, "max_size": 1333, "size_divisor": 32}, (800, 1344)),
        ({"size": {"height": 320, "width": 320}}, (320, 320)),
    ):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor), encoding="utf-8")
        assert named_by_config(resolve_model(spec)).processed == size
    named = named_by_config(resolve_model(spec))
    assert named.config["torch_dtype"] == "float32"  # where the config.json states none
    text = media_script(Job(model=named.spec), resolve_model(named.spec), processed=named.processed)
    assert '"pixel_values": torch.rand(3, 320, 320),' in text


@pytest.mark.parametrize(
    ("kind", "architecture", "task"),
    [
        ("dpt", "DPTForDepthEstimation", "depth-estimation"),
        ("dpt", "DPTForSemanticSegmentation", "semantic-segmentation"),
        ("beit", "BeitForSemanticSegmentation", "semantic-segmentation"),
        ("detr", "DetrForSegmentation", None),
    ],
)
def test_a_checkpoint_has_the_task_of_its_class(kind: str, architecture: str, task: str | None, tmp_path: Path) -> None:
    config = {"model_type": kind, "architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = named_by_config(resolve_model(ModelSpec(id=str(tmp_path))))
    assert (found and found.task) == task


@pytest.mark.parametrize("model", quick_every(50, named_models()), ids=lambda model: model.label)
def test_every_model_has_the_parameters_that_are_published(model: NamedModel) -> None:
    if model.config["model_type"] in ("detr", "conditional_detr", "deformable_detr"):
        pytest.importorskip("timm", reason="timm has their backbone", exc_type=ImportError)
    if model.config["model_type"] in ("maskformer", "mask2former"):
        pytest.importorskip("scipy", reason="their losses need it")
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
    assert "image_token = 500  # 2 images of 1036 x 504 pixels: 666 tokens each" in text
    assert "image = [502] + [image_token] * 666 + [503]" in text
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


def test_a_config_that_leaves_the_tokens_of_an_image_open_is_refused() -> None:
    job = shrunken("llava")
    config = {**SHRUNKEN["llava"], "model_type": "llava", "vision_config": {"model_type": "clip_vision_model"}}
    unknown = msgspec.structs.replace(job, model=msgspec.structs.replace(job.model, config=config))
    with pytest.raises(InputError, match="does not state patch_size"):
        script_of(unknown)


def test_another_name_may_have_its_owner_before_it() -> None:
    assert find_named_model("facebook/wav2vec2-base") is find_named_model("wav2vec2") is not None
    assert find_named_model("somebody/wav2vec2-base") is None
