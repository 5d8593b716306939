import shlex
import sys
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from builders import ScriptedSource, make_gpu, make_mig_gpu, make_snapshot
from command_line import vramtop
from json_schemas import valid_json

from vramtop.estimator.common.sizes import GIB

Answer = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def run_fit(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Return exit code, JSON and error output of ``vramtop fit gpt2`` on GPUs with this free memory."""

    def ask(*words: str, free: tuple[float, ...] = (10, 70, 70), visible: str | None = None, mig: bool = False) -> Any:
        gpus = [make_gpu(n, free_bytes=round(size * GIB)) for n, size in enumerate(free)]
        snapshot = make_snapshot([make_mig_gpu(0), *gpus[1:]] if mig else gpus)
        monkeypatch.setattr("vramtop.tui.cli.fitting.machine_gpus.NvmlSource", lambda: ScriptedSource([snapshot]))
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        job = [] if "--" in words else ["gpt2"]
        code, out, err = vramtop("fit", *job, "--method", "formula", "--json", *words)
        return code, valid_json("fit", out) if out else {}, err

    return ask


def test_the_visible_gpu_with_the_most_free_memory_is_chosen(run_fit: Answer) -> None:
    code, said, _ = run_fit()
    assert (code, said["placement"], said["notes"]) == (0, [1], [])
    code, said, _ = run_fit(visible="2,0")
    assert (code, said["placement"], [gpu["index"] for gpu in said["gpus"]]) == (0, [2], [0, 2])
    assert said["notes"] == ["Only GPU 2, 0: CUDA_VISIBLE_DEVICES is '2,0'."]


def test_flags_take_precedence_over_the_environment(run_fit: Answer) -> None:
    code, said, _ = run_fit("--gpu", "1", visible="0")
    assert (code, said["placement"]) == (0, [1])


SCRIPT = """import os
from transformers import *
model = AutoModelForCausalLM.from_pretrained("gpt2")
args = TrainingArguments(output_dir="o", per_device_train_batch_size=1)
Trainer(model=model, args=args, train_dataset=data).train()
"""


@pytest.mark.parametrize("line", ["env CUDA_VISIBLE_DEVICES=0 python plain.py", "python own.py"])
def test_the_job_is_judged_on_the_gpus_that_it_chooses(run_fit, in_folder, line) -> None:
    (in_folder / "plain.py").write_text(SCRIPT)
    (in_folder / "own.py").write_text(SCRIPT.replace("os\n", "os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\n", 1))
    job = ["--seq-len", "512", "--", *shlex.split(line)]
    code, said, _ = run_fit(*job, free=(0.5, 70))
    assert (code, [gpu["index"] for gpu in said["gpus"]]) == (1, [0])
    assert any(note.startswith("Only GPU 0: ") for note in said["notes"])
    code, said, _ = run_fit("--gpu", "1", *job, free=(0.5, 70))
    assert (code, said["placement"]) == (0, [1])
    assert "The job does not use all of GPU 1, which --gpu names." in said["notes"]


def test_a_choice_that_is_not_known_is_a_note(run_fit: Answer, in_folder: Path) -> None:
    (in_folder / "plain.py").write_text(SCRIPT)
    code, said, _ = run_fit("--seq-len", "512", "--", *shlex.split("srun -n 1 --gpus 1 python plain.py"))
    assert (code, len(said["gpus"])) == (0, 3)
    assert "--gpus of srun is '1': the job's GPUs are not known before it starts." in said["notes"]


def test_an_environment_that_names_no_gpu_is_an_input_error(run_fit: Answer) -> None:
    code, _, complaint = run_fit(visible="9")
    assert code == 2
    assert "CUDA_VISIBLE_DEVICES is '9', which names no GPU here" in complaint


def test_a_gpu_beside_mig_devices_has_to_be_named(run_fit: Answer) -> None:
    code, said, _ = run_fit(mig=True)
    assert (code, said["placement"], said["placement_uuids"]) == (0, [1], ["GPU-00000001"])
    assert said["notes"][0].endswith("start this job with CUDA_VISIBLE_DEVICES=GPU-00000001.")
    code, said, _ = run_fit("--gpu", "0", mig=True)
    assert (code, said["placement"], said["placement_uuids"]) == (0, [0], ["MIG-0-3-0"])
    assert [gpu["mig"]["profile"] for gpu in said["gpus"]] == ["1c.3g.40gb", "2c.3g.40gb", "1g.20gb"]


def test_only_mig_devices_named_in_the_environment_are_used(run_fit: Answer) -> None:
    code, said, _ = run_fit(mig=True, visible="MIG-0-9-0")
    assert (code, said["placement_uuids"], len(said["gpus"])) == (0, ["MIG-0-9-0"], 1)
    assert said["notes"] == ["Only MIG-0-9-0: CUDA_VISIBLE_DEVICES is 'MIG-0-9-0'."]
    code, _, complaint = run_fit(mig=True, visible="MIG-none")
    assert (code, "names no GPU here" in complaint) == (2, True)


def test_each_mig_device_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    snapshot = make_snapshot([make_mig_gpu(0), make_gpu(1, mig=())])
    monkeypatch.setattr("vramtop.tui.cli.fitting.machine_gpus.NvmlSource", lambda: ScriptedSource([snapshot]))
    lines = vramtop("fit", "gpt2", "--method", "formula", code=0).out.splitlines()
    assert lines[0].endswith("fits on GPU 0:3:0 (MIG 1c.3g.40gb)")
    assert [line for line in lines if line.startswith("*")] == [
        "*GPU 0:3:0 (MIG 1c.3g.40gb): 39.0 GiB available of 40.0: ✓ fits"
    ]
    assert " GPU 0:9 (MIG 1g.20gb): 19.0 GiB available of 20.0: ✓ fits" in lines
    assert any(line.startswith(" GPU 1 NVIDIA H100 80GB HBM3 is in MIG mode and has no MIG device") for line in lines)


@pytest.mark.parametrize(
    ("visible", "launcher", "splits"), [(None, ["python"], True), ("1", ["python"], False), (None, ["torchrun"], False)]
)
def test_a_trainer_in_one_process_may_gather_the_logits_of_all_gpus(run_fit, tmp_path, visible, launcher, splits):
    (tmp_path / "train.py").write_text(SCRIPT)
    _, said, _ = run_fit("--seq", "512", "--", *launcher, str(tmp_path / "train.py"), visible=visible)
    assert any("One process finds 3 GPUs" in each for each in said["budget"]["warnings"]) == splits
    _, of_one, _ = run_fit("--seq", "512", "--", "python", str(tmp_path / "train.py"), visible="1")
    (forward,) = [each for each in of_one["budget"]["phases"] if each["name"] == "forward"]
    more = said["budget"]["peak"]["high_bytes"] - of_one["budget"]["peak"]["high_bytes"]
    assert more > 3 * forward["components"]["logits"] if splits else not more


@pytest.mark.usefixtures("quick_rehearsals")
def test_a_program_finds_the_gpus_that_the_job_gets(run_fit: Answer, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nraise SystemExit(f'finds {torch.cuda.device_count()}')\n")
    for visible, flags, count in ((None, (), 3), ("2,0", (), 2), (None, ("--gpu", "1"), 1)):
        words = ("--rehearse", *flags, "--", sys.executable, str(tmp_path / "train.py"))
        assert f"finds {count}" in run_fit(*words, visible=visible)[2]


def test_a_device_map_spreads_a_model_over_the_gpus_that_its_process_finds(run_fit: Answer, tmp_path: Path) -> None:
    text = SCRIPT.replace('("gpt2")', '("gpt2", device_map="auto")')
    (tmp_path / "train.py").write_text(text)
    line = ("--seq", "512", "--", "python", str(tmp_path / "train.py"))
    for visible, flags, count in ((None, (), 3), ("1", (), 1), (None, ("--gpu-type", "2xh100"), 2)):
        _, said, _ = run_fit(*flags, *line, visible=visible)
        parallel = said["budget"]["job"].get("parallel", {})
        assert (parallel.get("device_map"), parallel.get("pipeline", 1)) == ("auto" if count > 1 else None, count)
        assert not any("nn.DataParallel" in each for each in said["budget"]["warnings"])


def test_a_tool_that_stops_with_more_gpus_than_processes_is_noted(run_fit, in_folder) -> None:
    (in_folder / "x.yaml").write_text("model_name_or_path: gpt2\nstage: sft\nbf16: true\ncutoff_len: 512\n")
    for gpus, stops in (("4xh100", True), ("1xh100", False)):
        _, said, _ = run_fit("--gpu-type", gpus, "--", "python", "src/train.py", "x.yaml")
        assert any("stops where one process finds 4 GPUs" in each for each in said["notes"]) == stops


def test_a_tool_that_starts_one_process_per_gpu_is_counted_on_all(run_fit, in_folder) -> None:
    text = "model_name_or_path: gpt2\nstage: sft\nfinetuning_type: full\nbf16: true\ncutoff_len: 512\n"
    (in_folder / "x.yaml").write_text(text)
    for gpus, strategy, ranks in (("4xh100", "ddp", 4), ("1xh100", "none", 1)):
        _, said, _ = run_fit("--gpu-type", gpus, "--", "llamafactory-cli", "train", "x.yaml")
        parallel = said["budget"]["job"].get("parallel", {})
        assert (parallel.get("strategy", "none"), parallel.get("data_replicate", 1)) == (strategy, ranks)
        assert not any("One process is counted" in each for each in said["notes"])


ON_24 = ("fit", "Qwen/Qwen2.5-0.5B", "--micro-batch", "8", "--gpu-memory", "24GiB", "--method", "formula")


@pytest.mark.slow
def test_flags_of_a_suggestion_can_be_copied_as_they_are_printed() -> None:
    """A comma between them would be part of a value."""
    printed = vramtop(*ON_24, code=1).out.partition("      --")[2]
    first, *more = f"--{printed}".splitlines()
    rest = takewhile(lambda line: line.startswith(6 * " "), more)
    vramtop(*ON_24, *" ".join([first, *rest]).split(), code=0)


def test_the_largest_value_that_fits_is_printed_and_suggestions_have_the_flags_of_the_launch_line() -> None:
    words = ("fit", "gpt2", "--method", "formula", "--gpu-memory", "24GiB")
    largest = valid_json("fit", vramtop(*words, "--json", code=0).out)["largest"]["micro_batch"]
    text = vramtop(*words).out
    assert f"largest that fits, all else unchanged: micro-batch {largest} (now 1)" in text
    line = "trl sft --model_name_or_path gpt2 --per_device_train_batch_size 128 --max_length 1024"
    text = vramtop("fit", "--gpu-memory", "16GiB", "--method", "formula", "--", *line.split(), code=1).out
    assert "--per_device_train_batch_size 128 -> " in text
    assert "ways to make it fit, least costly first:" in text


@pytest.mark.slow
def test_every_rank_on_a_described_host_takes_memory_of_it() -> None:
    def found(gpu: str, *words: str, code: int) -> Any:
        job = ("Qwen/Qwen2.5-0.5B", "--batch-size", "8", "--fsdp", "8", "--precision", "bf16-mixed")
        return valid_json(
            "fit", vramtop("fit", *job, "--gpu-memory", gpu, "--json", "--method", "formula", *words, code=code).out
        )

    assert "host" not in found("80GiB", code=0)
    answer = found("80GiB", "--host-memory", "20GiB", code=1)
    assert (answer["verdict"], answer["host"]["verdict"]) == ("does_not_fit", "does_not_fit")
    assert "8 processes need" in answer["sentence"]
    assert "parallel.load_on_rank_zero" in answer["suggestions"][0]["changes"]
    assert found("80GiB", "--host-memory", "256GiB", code=0)["verdict"] == "fits"
    both = found("20GiB", "--host-memory", "20GiB", code=1)["suggestions"]
    assert both[0]["verdict"] == "fits"
    assert any("parallel.load_on_rank_zero" in each["changes"] for each in both)
