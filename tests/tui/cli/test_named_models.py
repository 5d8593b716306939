"""Models that are given images or audio, by name: their script, its rehearsal, and flags that mean nothing for them."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import vramtop
from json_schemas import valid_json

from vramtop.estimator.job.settings import ModelSpec
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.program.named_models import named_by_config
from vramtop.tui.job.scripted_models import find_scripted


def test_the_script_is_printed() -> None:
    words = ["program", "openai/whisper-small", "--batch", "4", "--lora", "8"]
    script = vramtop(*words, code=0).out
    assert "AutoModelForSpeechSeq2Seq" in script
    assert "per_device_train_batch_size=4," in script
    assert "r=8," in script
    found = valid_json("program", vramtop(*words, "--json", code=0).out)
    assert found == {"schema": 1, "command": "python whisper-small.py", "script": script}


@pytest.mark.usefixtures("quick_rehearsals")
def test_the_answer_is_a_rehearsal() -> None:
    found = valid_json("estimate", vramtop("estimate", "whisper-tiny", "--json", "--gpu-type", "h100", code=0).out)
    assert found["method"] == "rehearsed"
    assert found["model"]["parameters"] == 37_760_640
    assert any("1 x 30 s of audio, all parameters, fp32" in note for note in found["notes"])
    assert "and fits on GPU 0 (rehearsed)" in vramtop("preflight", "whisper-tiny", "--gpu-type", "h100", code=0).out


def test_a_job_file_may_have_such_a_model(in_folder: Path) -> None:
    text = '[model]\nid = "openai/whisper-small"\n[training]\nmicro_batch = 6\n'
    Path("job.toml").write_text(text, encoding="utf-8")
    script = vramtop("program", "job.toml", "--lora", "8", code=0).out
    assert "AutoModelForSpeechSeq2Seq" in script
    assert "per_device_train_batch_size=6," in script
    Path("job.toml").write_text(f"{text}sequence_length = 77\n", encoding="utf-8")
    err = vramtop("fit", "job.toml", code=2).err
    assert "job.toml: training.sequence_length means nothing for whisper-small" in err


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "vit", "architectures": ["ViTForImageClassification"]}, "AutoModelForImageClassification"),
        ({"model_type": "wav2vec2", "architectures": ["Wav2Vec2Model"]}, "AutoModelForCTC"),
        ({"model_type": "vit", "architectures": ["ViTForMaskedImageModeling"]}, None),
        ({"model_type": "bert", "architectures": ["BertModel"]}, None),
    ],
)
def test_a_checkpoint_of_such_a_class_has_the_same_script(config, said: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert named_by_config(resolve_model(ModelSpec(id=str(folder)))) is None or said
    if said is None:
        return
    script = vramtop("program", str(folder), "--batch", "64", code=0).out
    assert said in script
    assert "per_device_train_batch_size=64," in script
    assert "python mine.py" in script
    assert find_scripted(str(folder), None, stated={"training.mode"}) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["vit-base", "--seq-len", "512"], "--seq-len means nothing for vit-base-patch16-224"),
        (["whisper-small", "--dpo"], "--dpo means nothing for whisper-small"),
        (["whisper-small", "--inference"], "none that runs it without training"),
        (["vit-base", "--resolution", "384"], "takes images of 224 x 224 pixels"),
        (["qwen2.5-vl-7b", "--images", "2x3x4x5"], "--images: '2x3x4x5' is no size in pixels, such as 2x1024x768"),
        (["all-minilm", "--images", "2"], "all-MiniLM-L6-v2 is given texts"),
        (["wav2vec2", "--seconds", "long"], "--seconds: 'long' is no number of seconds"),
        (["gpt2", "--images", "2"], "--images is for models that are given images or audio, which gpt2 is not"),
    ],
)
def test_a_flag_that_means_nothing_is_refused(words: list[str], said: str) -> None:
    assert said in vramtop("estimate", *words, code=2).err


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("bitsandbytes", ["--qlora"]),
        ("bitsandbytes", ["--lora", "--optim", "adamw-8bit"]),
        ("deepspeed", ["--lora", "--zero", "3", "--gpus", "2"]),
        ("liger_kernel", ["--lora", "--liger"]),
    ],
)
def test_a_package_that_the_script_needs_is_named(package: str, words: list[str]) -> None:
    if find_spec(package) is not None:
        pytest.skip("it is installed")
    err = vramtop("estimate", "qwen2.5-vl-3b", *words, code=3).err
    assert err.startswith(f"vramtop: the training script of Qwen2.5-VL-3B-Instruct needs {package}, which ")


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="torchvision is installed")
def test_a_model_of_torchvision_says_what_it_needs() -> None:
    said = vramtop("resnet50", "--batch", "128", code=3).err
    assert "resnet50 is called like a vision model, which torchvision and timm build by name, but in " in said
    assert "-m pip install torchvision timm installs them" in said


def test_a_model_of_torchvision_is_known_where_it_is_installed(tmp_path: Path, monkeypatch) -> None:
    module = tmp_path / "torchvision" / "models" / "vgg.py"
    module.parent.mkdir(parents=True)
    (tmp_path / "torchvision" / "__init__.py").touch()
    module.write_text("@register_model()\ndef vgg_of_ours():\n    pass\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    script = vramtop("program", "us/VGG-of-ours", "--batch", "128", "--resolution", "64", "--amp", code=0).out
    assert 'torchvision.models.get_model("vgg_of_ours", weights=None, num_classes=1000)' in script
    assert "batch = 128\nimages = torch.rand(batch, 3, 64, 64)" in script
    assert "dtype=torch.float16" in script


def test_a_model_whose_text_part_is_built_in_has_its_images_by_its_own_name() -> None:
    script = vramtop("program", "gemma-3-4b", "--lora", "--images", "2", code=0).out
    assert "image_token = 262144" in script
    assert "image = [255999] + [image_token] * 256 + [256000]" in script
    assert '"pixel_values": torch.rand(2, 3, 896, 896),' in script
    out = vramtop("program", "qwen3-vl-2b", "--images", "8192x8192", code=0).out
    assert "16,384 tokens each" in out  # 4096 x 4096 pixels, to which the processor scales it


def test_a_diffusion_model_trains_adapters_unless_all_of_it_is_asked_for() -> None:
    script = vramtop("program", "flux", "--resolution", "1024", "--batch", "2", code=0).out
    assert "r=4,  # not set" in script
    assert "torch.rand(3, 1024, 1024)" in script
    script = vramtop("program", "sdxl", "--full", "--bf16", "--optim", "adamw_bnb_8bit", code=0).out
    assert "LoraConfig" not in script
    assert 'Accelerator(mixed_precision="bf16")' in script
    assert "optimizer = AdamW8bit(model.parameters(), " in script
    assert "from bitsandbytes.optim import AdamW8bit" in script
