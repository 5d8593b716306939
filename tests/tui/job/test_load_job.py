import json

import pytest
from command_line import vramtop

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.job.settings import ModelSpec, Training
from vramtop.estimator.program.named_models import find_named_model
from vramtop.tui.job.changed_settings import changed_settings_text
from vramtop.tui.job.read_job import pending_job
from vramtop.tui.job.typed_job import load_from_text

LINE = (
    "torchrun --nproc_per_node 2 train.py --model_name_or_path meta-llama/Llama-3.1-8B "
    "--per_device_train_batch_size 4 --max_length 1024 --output_dir out"
)


@pytest.fixture(autouse=True)
def folder(in_folder):
    (in_folder / "train.py").write_text("from trl import SFTTrainer\n")
    return in_folder


def test_a_job_file_is_loaded_with_its_settings(folder):
    (folder / "my job.toml").write_text('[model]\nid = "gpt2"\n[training]\nmicro_batch = 3\n')
    found = load_from_text(f"'{folder / 'my job.toml'}'")
    assert found.job == Job(model=ModelSpec(id="gpt2"), training=Training(micro_batch=3, sequence_length=1024))
    assert found.origins == {"model.id": "my job.toml", "training.micro_batch": "my job.toml"}
    assert found.file == folder / "my job.toml"


def test_a_launch_line_is_loaded_with_the_flags_as_evidence():
    found = load_from_text(f"$ {LINE}")
    assert found.job.training.micro_batch == 4
    assert found.job.parallel.world_size == 2
    assert "--per_device_train_batch_size" in found.origins["training.micro_batch"]
    assert found.missing == ()


def test_settings_absent_from_a_configuration_are_missing_and_no_error(folder):
    (folder / "sft.yaml").write_text("model_name_or_path: gpt2\noutput_dir: out\nper_device_train_batch_size: 2\n")
    found = load_from_text("sft.yaml")
    assert found.job.model.id == "gpt2"
    assert set(found.missing) <= {"training.sequence_length"}


TORCHTUNE = "{model: {_component_: torchtune.models.qwen2_5.qwen2_5_0_5b}, batch_size: 2}"
AXOLOTL = "{base_model: Qwen/Qwen2.5-0.5B, micro_batch_size: 1, sequence_len: 512, fsdp: [full_shard, auto_wrap]}"


@pytest.mark.parametrize(
    ("text", "key", "usual", "others"),
    [(TORCHTUNE, "training.sequence_length", 2048, (512, 8192)), (AXOLOTL, "parallel.data_shard", 8, (2,))],
)
def test_a_size_that_a_configuration_leaves_out_is_the_usual_one_with_a_wide_range(folder, text, key, usual, others):
    (folder / "tool.yaml").write_text(text)

    def budget(*more):
        out = vramtop("estimate", "tool.yaml", "--gpu-type", "4090", "--method", "formula", "--json", *more).out
        return json.loads(out)

    found = budget()
    table, _, name = key.partition(".")
    assert (found["job"][table][name], found["job"]["unsure"]["between"]) == (usual, {key: list(others)})
    assert any(each.startswith(f"{key} is not set, so {usual:,} is assumed") for each in found["warnings"])
    for size in (usual, *others):
        sure = budget("--set", f"{key}={size}")
        assert "unsure" not in sure["job"]
        assert found["peak"]["low_bytes"] <= sure["peak"]["low_bytes"]
        assert found["peak"]["high_bytes"] >= sure["peak"]["device_bytes"]


def test_a_pending_job_may_be_another_tools_configuration(folder):
    (folder / "tool.yaml").write_text(TORCHTUNE)
    assert pending_job("tool.yaml").training.sequence_length == 2048
    (folder / "tool.yaml").write_text(TORCHTUNE.replace(", batch_size: 2", ""))
    with pytest.raises(
        InputError, match=r"there, or check it by vramtop fit tool\.yaml --set training\.micro_batch=1$"
    ):
        pending_job("tool.yaml")


def test_a_model_name_is_loaded_as_a_job_with_its_usual_task():
    assert load_from_text("bert-base-uncased").job.model.task == "masked-lm"


def test_defaults_of_the_tool_are_named_as_assumed():
    """They are no loss: nothing is saved by a fit check."""
    out = vramtop("fit", "--gpu-type", "h100", "--method", "formula", "--json", "--", *LINE.split(), code=3).out
    (note,) = [each for each in json.loads(out)["notes"] if "training.optimizer" in each]
    assert note.startswith("Assumed (the job does not set these): ")
    assert "training.micro_batch" not in note


def test_a_program_without_a_model_that_can_be_read_is_one_to_rehearse(in_folder):
    (in_folder / "train.py").write_text("import torch\ntorch.nn.Linear(2, 2).cuda()\n")
    for text in ("train.py", "python train.py", "vramtop rehearse -- python train.py", "rehearse python train.py"):
        job = load_from_text(text).job
        assert (job.program.command, job.program.folder) == ("python train.py", str(in_folder.resolve()))
    (in_folder / "train.sh").write_text("echo")
    with pytest.raises(InputError):
        load_from_text("./train.sh --batch 3")


WHISPER = """
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, WhisperForConditionalGeneration
model = WhisperForConditionalGeneration.from_pretrained("openai/whisper-small")
args = Seq2SeqTrainingArguments("out", per_device_train_batch_size=16, fp16=True)
Seq2SeqTrainer(args=args, model=model, train_dataset=None).train()
"""


@pytest.mark.parametrize("is_on_hub", [False, True])
def test_a_line_that_trains_on_audio_is_told_at_once_that_only_its_program_knows(tmp_path, is_on_hub):
    text = WHISPER if is_on_hub else WHISPER.replace("openai/whisper-small", str(tmp_path))
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "config.json").write_text(json.dumps(find_named_model("whisper-small").config))
    err = vramtop("fit", "--read-only", "--gpu-memory", "80GiB", "--", "python", "train.py", code=3).err
    assert "for speech-seq2seq, whose inputs are not read from a script; --rehearse" in err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vramtop fit -- {}", ("gpt2", 4, None)),
        ("$ vramtop fit --gpu-type a100-80 --optimizer adafactor -- {}", ("gpt2", 4, "a100-80gb")),
        ("vramtop rehearse --gpu-type h100 --data synthetic -- {}", (None, 1, "h100-80gb")),
        ("vramtop run --fit --rehearse -- {}", (None, 1, None)),
        ("nohup {} > log 2>&1 &", ("gpt2", 4, None)),
    ],
)
def test_a_whole_line_of_the_shell_or_of_vramtop_may_be_pasted(text, expected, in_folder):
    (in_folder / "train.py").write_text(
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        'model = AutoModelForCausalLM.from_pretrained("gpt2")\n'
        'Trainer(model, TrainingArguments("out", per_device_train_batch_size=4)).train()\n'
    )
    loaded = load_from_text(text.format("python train.py"))
    assert (loaded.job.model.id, loaded.job.training.micro_batch, loaded.job.target.gpu) == expected
    program = loaded.job.program or loaded.program.program
    assert program.command.removeprefix("nohup ") == "python train.py"
    assert program.data == ("synthetic" if "--data" in text else None)


def test_a_rehearsed_program_is_copied_as_the_command_that_judges_it(in_folder):
    loaded = load_from_text("rehearse python train.py --lr 1")
    changes = {"program.steps": 2, "target.gpu": "rtx-4090", "program.command": "python train.py --lr 2"}
    job = with_changes(loaded.job, changes)
    text = changed_settings_text(job, loaded, "rehearse python train.py --lr 1", gpus=2)
    wanted = "vramtop fit --rehearse --set program.steps=2 --gpu-type rtx-4090 --gpus 2 -- python train.py --lr 2"
    assert text.splitlines()[0] == wanted


@pytest.mark.parametrize(
    ("version", "words", "precision"),
    [
        ("4.52.4", [], "fp32"),
        ("4.52.4", ["--dtype", "bf16"], "bf16"),
        ("4.52.4", ["--set", "software.transformers=5.0"], "bf16"),
        ("5.2.0", [], "bf16"),
    ],
)
@pytest.mark.parametrize("active", [False, True])
def test_a_typed_model_has_the_defaults_of_the_python_that_would_run_it(
    folder, monkeypatch, version, words, precision, active
):
    packages = folder / "env" / "lib" / "python3.12" / "site-packages"
    for name in ("torch-2.6.0+cu124", f"transformers-{version}", "peft-0.15.0"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
    python = folder / "env" / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    if active:
        monkeypatch.setenv("VIRTUAL_ENV", str(folder / "env"))
    named = [] if active else ["--python", str(python)]
    done = vramtop("estimate", "llama-3.2-1b", *words, *named, "--method", "formula", "--json")
    found = json.loads(done.out)
    assert found["job"]["training"]["precision"] == precision
    is_counted = version.startswith("4") and "--set" not in words
    assert any(f"transformers {version}, which {python} has" in each for each in found["notes"]) is is_counted
    typed = load_from_text("llama-3.2-1b").job.software
    assert (typed.peft == "0.15.0") is (active and version.startswith("4"))
