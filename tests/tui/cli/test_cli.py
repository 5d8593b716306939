"""The command line: exit codes, standard output and standard error."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import vramtop_in
from json_schemas import valid_json
from slow_cases import quick_every

JOB = """
name = "check"
[model]
id = "Qwen/Qwen2.5-0.5B"
[training]
micro_batch = 2
sequence_length = 512
"""
COMPONENTS = {
    *("weights", "other_models", "gradients", "optimizer", "activations"),
    *("logits", "temporary", "inputs", "communication", "context"),
}

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch and transformers")
Vramtop = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def vramtop(tmp_path: Path) -> Vramtop:
    """Return a function that runs the command in an empty folder, without colour."""
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "vision.py").write_text("import torchvision\nmodel = torchvision.models.resnet50()\n")
    (tmp_path / "zero3.json").write_text('{"zero_optimization": {"stage": 3}}')

    def run(*words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        return vramtop_in(tmp_path, words, environ)

    return run


def test_estimate_prints_the_documented_json_and_a_table_with_a_labelled_bar(vramtop: Vramtop) -> None:
    done = vramtop("estimate", "job.toml", "--json", "--method", "formula")
    assert (done.returncode, done.stderr) == (0, "")
    budget = valid_json("estimate", done.stdout)
    assert budget["schema"] == 1
    facts = {"parameters": 494032768, "trainable_parameters": 494032768, "count": "exact", "max_positions": 32768}
    assert budget["model"] == facts
    assert [phase["name"] for phase in budget["phases"]] == ["loading", "forward", "backward", "optimizer step"]
    assert all(set(phase["components"]) == COMPONENTS for phase in budget["phases"])
    assert budget["peak"]["allocated_bytes"] < budget["peak"]["reserved_bytes"] < budget["peak"]["device_bytes"]
    assert budget["job"]["training"]["micro_batch"] == 2
    done = vramtop("estimate", "job.toml", "--method", "formula")
    assert done.returncode == 0
    assert "494,032,768 parameters" in done.stdout
    assert " GiB on the device in the " in done.stdout
    bar = next(line for line in done.stdout.splitlines() if line.startswith("│weights"))
    assert "│optim" in bar
    assert "├" in bar
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("compose.yml", b"services: {web: {image: nginx}}", "not a known configuration of a training tool"),
        ("empty.yaml", b"", "the file is empty"),
        ("empty.json", b"", "the file is empty"),
        ("list.json", b"[1, 2]", "a list; expected a table of settings"),
        ("binary.yaml", b"\x7fELF\xff\xfe\x00", "cannot be read as text"),
        ("binary", b"\x7fELF\xff\xfe\x00", "not a JSON object"),
        ("cycle.yaml", b"base_model: &a\n  x: *a\n", "a value contains itself"),
    ],
)
def test_a_file_that_is_no_job_is_reported_in_one_sentence(vramtop, tmp_path, name, content, sentence) -> None:
    (tmp_path / name).write_bytes(content)
    done = vramtop("estimate", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert sentence in done.stderr
    assert "launch line after --" in done.stderr


@pytest.mark.slow
@needs_torch
def test_a_traced_step_names_its_largest_tensors_and_its_timeline_is_in_the_json(vramtop, tmp_path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    done = vramtop("estimate", "job.toml", "--method", "traced", "-v", **environ)
    assert (done.returncode, done.stderr) == (0, "")
    at = done.stdout.splitlines().index("largest at the peak (backward), GiB")
    rows = done.stdout.splitlines()[at + 1 : at + 7]
    assert all(row[0] in "WGOALTM" for row in rows)
    assert any("model.embed_tokens" in row and "151936 x 896" in row for row in rows)
    assert "PYTORCH_CUDA_ALLOC_CONF sets the allocator: expandable_segments:True" in " ".join(done.stdout.split())
    written = valid_json("estimate", vramtop("estimate", "job.toml", "--method", "traced", "--json", **environ).stdout)
    assert [mark["name"] for mark in written["timeline"]["phases"]] == ["forward", "backward", "optimizer step"]
    assert len(written["timeline"]["reserved_bytes"]) == len(written["timeline"]["events"])


def test_ascii_output_is_ascii_and_marks_the_range(vramtop: Vramtop) -> None:
    text = vramtop("fit", "job.toml", "--ascii", "--gpu-memory", "24GiB", "--method", "formula").stdout
    assert text.isascii()
    assert "|logits|C+-" in text  # the range, behind the peak
    command = [sys.executable, "-m", "vramtop.tui.cli", "estimate", "gpt2", "--method", "formula"]
    environ = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    plain = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert (plain.returncode, plain.stdout.isascii()) == (0, True)


@pytest.mark.parametrize(
    ("bound", "code", "verdict"),
    quick_every(
        4,
        [
            ("high_bytes", 0, "fits"),
            ("device_bytes", 4, "tight"),
            ("low_bytes", 3, "unknown"),
            (None, 1, "does_not_fit"),
        ],
        start=2,
    ),
)
def test_fit_gives_a_verdict_for_a_described_machine(
    vramtop: Vramtop, bound: str | None, code: int, verdict: str
) -> None:
    peak = valid_json("estimate", vramtop("estimate", "job.toml", "--json", "--method", "formula").stdout)["peak"]
    size = peak[bound] if bound else peak["low_bytes"] - 1
    done = vramtop("fit", "job.toml", "--json", "--gpu-memory", str(size), "--method", "formula")
    found = valid_json("fit", done.stdout)
    assert (done.returncode, found["verdict"]) == (code, verdict)
    assert found["gpus"][0]["available_bytes"] == found["gpus"][0]["free_bytes"] == size
    assert found["margin_bytes"] == size - found["budget"]["peak"]["device_bytes"]
    for suggestion in found["suggestions"]:
        assert suggestion["device_bytes"] < found["budget"]["peak"]["device_bytes"]
    assert bool(found["suggestions"]) == (verdict != "fits")


def test_lora_without_layers_has_those_of_peft_and_says_so(vramtop: Vramtop) -> None:
    words = ("estimate", "gpt2", "--lora", "--json", "--method", "formula")
    found = valid_json("estimate", vramtop(*words).stdout)
    assert found["job"]["lora"]["targets"] == ["c_attn"]
    assert found["notes"] == ["LoRA on c_attn, peft's default for this model; --lora-targets changes this."]


@pytest.mark.slow
def test_fit_without_a_driver_prints_the_need_and_the_cards_on_which_it_fits(vramtop: Vramtop) -> None:
    done = vramtop("fit", "job.toml", "--method", "formula", "--json")
    assert (done.returncode, done.stderr) == (3, "")
    found = valid_json("fit", done.stdout)
    assert (found["verdict"], found["gpus"], found["margin_bytes"]) == ("unknown", [], None)
    assert "--gpu-type" in found["sentence"]
    sizes = [card["total_bytes"] for card in found["cards"]]
    assert sizes == sorted(sizes)
    for card in (found["cards"][0], found["cards"][-1]):
        words = (
            ("--gpu-type", card["gpu"], "--fsdp", str(card["gpus"]))
            if card["gpus"] > 1
            else ("--gpu-type", card["gpu"])
        )
        again = vramtop("fit", "job.toml", "--method", "formula", "--json", *words)
        assert (again.returncode, valid_json("fit", again.stdout)["budget"]["peak"]["device_bytes"]) == (
            0,
            card["device_bytes"],
        )


def test_the_text_without_a_driver_begins_with_the_need(vramtop: Vramtop) -> None:
    done = vramtop("fit", "llama-3.1-8b", "--method", "formula")
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert lines[0].startswith("? CANNOT TELL  needs 66.")
    at = lines.index("cards on which it fits, smallest first; several GPUs: sharded with --fsdp:")
    assert lines[at + 1].split() == ["GPUS", "MEMORY", "NEEDS", "EACH", "CARDS"]
    assert any("H100 80GB" in line for line in lines[at + 2 :])
    assert lines[-2:] == ["This figure does not include evaluation or saving.", "8 assumptions: -v lists them"]


def test_fit_prints_verdict_gpus_ways_budget_and_the_number_of_assumptions(vramtop: Vramtop) -> None:
    words = ("fit", "llama-3.1-8b", "--qlora", "--gc", "false", "--gpu-type", "4090", "--method", "formula")
    text = vramtop(*words).stdout
    places = [
        text.index(part) for part in ("DOES NOT FIT", "*GPU 0", "ways to make it fit", "GiB     ", "assumptions: -v")
    ]
    assert places == sorted(places)
    assert "assumed:" not in text
    assert vramtop(*words, "-v").stdout.count("assumed:") == int(text.splitlines()[-1].split()[0])


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (("estimate",), 2, "no job"),
        (("estimate", "no-such/model"), 2, "no-such/model"),
        (("estimate", "zero3.json"), 2, "zero3.json does not set model.id"),
        (("estimate", "sft.yaml"), 2, "sft.yaml: no such file"),
        (
            ("estimate", "vision.py", "--read-only"),
            2,
            "vision.py names no model that vramtop knows; give it with --set model.id=NAME: a hub",
        ),
        (("fit", "--read-only", "--", "python", f"{300 * 'x'}.py"), 2, "File name too long"),
        (("estimate", 300 * "x"), 2, "not a folder with a config.json"),
        (("explain", 300 * "x"), 2, "File name too long"),
        (
            (
                "estimate",
                "--",
                *["pretrain_gpt.py", "--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4"],
            ),
            2,
            "vramtop knows (The size of the vocabulary is not stated: --vocab-size is missing); give it before the --",
        ),
        pytest.param(
            ("estimate", "job.toml", "--method", "traced", "--optimizer", "lion"),
            3,
            "the Trainer has no setting for lion",
            marks=needs_torch,
        ),
        (("fit", "job.toml", "--gpu-type", "h100-80gb", "--gpu-memory", "1GiB"), 2, "not allowed with"),
        (("fit", "job.toml", "--", "torchrun", "train.py"), 2, "give one"),
        (("attach", "one"), 2, "one is not a valid pid"),
        (("--pid", "99999999999", "--once"), 2, "99999999999 is not a valid pid"),
        (("--interval", "soon"), 2, "soon is not between"),
        (("--once", "--demo"), 2, "--demo is for the dashboard"),
        (("--replay", "run.jsonl.gz", "fit", "job.toml"), 2, "--replay is for the dashboard"),
        (("--json",), 2, "--json needs"),
        (("--", "torchrun"), 2, "launch line"),
        (("--job", "absent.toml", "--once"), 2, "absent.toml"),
        (("--replay", "job.toml"), 2, "job.toml"),
    ],
)
def test_every_usage_error_is_one_sentence_on_standard_error(vramtop, words, code, hint) -> None:
    done = vramtop(*words)
    assert done.returncode == code
    assert hint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_the_version_and_a_file_named_like_a_command(vramtop: Vramtop, tmp_path: Path) -> None:
    assert vramtop("--version").stdout.startswith("vramtop 0")
    (tmp_path / "fit").write_text(JOB)
    done = vramtop("--job", "fit", "estimate", "job.toml", "--method", "formula")
    assert (done.returncode, done.stdout.split(":")[0]) == (0, "check (Qwen2.5-0.5B)"), "the job's name, and its model"


def test_a_folder_with_a_config_is_a_model(vramtop: Vramtop, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    config = {"model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128}
    config |= {"num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(config))
    (tmp_path / "of-a-model.json").write_text(json.dumps(config))
    for name in ("tiny", "./tiny/config.json", "of-a-model.json"):
        done = vramtop("estimate", name, "--json", "--method", "formula")
        assert done.returncode == 0, done.stderr
        assert (
            valid_json("estimate", done.stdout)["model"]["parameters"]
            == 2 * 100 * 64 + 2 * (4 * 64**2 + 3 * 64 * 128 + 128) + 64
        )


def test_a_launch_line_is_a_job(vramtop: Vramtop, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    launch = ("torchrun", "--nproc-per-node", "2", "train.py", "--model_name_or_path", "Qwen/Qwen2.5-0.5B")
    step = ("--per_device_train_batch_size", "4", "--max_length", "256", "--bf16", "--output_dir", "out")
    words = ("fit", "--json", "--method", "formula", "--gpu-memory", "80GiB")
    found = valid_json("fit", vramtop(*words, "--", *launch, *step).stdout)
    job = found["budget"]["job"]
    assert (job["training"]["micro_batch"], job["training"]["sequence_length"]) == (4, 256)
    assert job["parallel"]["data_replicate"] == 2
    assert len(found["placement"]) == 2
    missing = vramtop(*words, "--", *launch)
    assert missing.returncode == 3
    assert "training.sequence_length" in missing.stderr
    filled = vramtop(*words, "--sequence-length", "128", "--", *launch, *step[:2])
    assert valid_json("fit", filled.stdout)["budget"]["job"]["training"]["sequence_length"] == 128


QWEN = ("--model_name_or_path", "Qwen/Qwen2.5-0.5B", "--per_device_train_batch_size", "4", "--output_dir", "out")


def test_attach_reads_a_running_process(vramtop: Vramtop, start_script) -> None:
    process = start_script(*QWEN)
    command = ("attach", str(process.pid), "--method", "formula")
    short = vramtop(*command, "--json")
    assert short.returncode == 3
    told = valid_json("attach", short.stdout)
    assert told["missing"] == ["training.sequence_length"]
    assert told["budget"] is None
    command += ("--set", "training.sequence_length=512")
    full = vramtop(*command, "--json")
    assert full.returncode == 0
    report = valid_json("attach", full.stdout)
    assert report["pid"] == process.pid
    assert report["job"]["training"]["micro_batch"] == 4
    assert "--per_device_train_batch_size" in report["evidence"]["training.micro_batch"]
    assert (report["status"], report["observed_bytes"]) == ("unknown", None)  # no GPU on the test machine
    assert report["budget"]["model"]["parameters"] == 494032768
    assert "--per_device_train_batch_size" in vramtop(*command).stdout


def test_control_characters_never_reach_the_terminal(vramtop: Vramtop, tmp_path: Path, start_script) -> None:
    (tmp_path / "evil.toml").write_text(JOB.replace('"check"', r'"\u001b[31mred\u0007"'))
    said = [vramtop("fit", "evil.toml", "--gpu-memory", "80GiB", "--method", "formula").stdout]
    said.append(vramtop("estimate", "\x1b[31mno such model").stderr)
    process = start_script("--name", "\x1b]0;title\x07")
    said.append(vramtop("attach", str(process.pid), "--method", "formula").stdout)
    assert all(said)
    assert not any(sign in text for text in said for sign in "\x1b\x07")


def test_code_is_trusted_only_with_the_flag(vramtop: Vramtop) -> None:
    for flags in (["--trust-remote-code"], []):
        done = vramtop("estimate", *flags, "gpt2", "--json", "--method", "formula")
        assert valid_json("estimate", done.stdout)["job"]["model"]["trust_remote_code"] == bool(flags)


def test_a_custom_model_is_not_imported_for_the_formula(vramtop: Vramtop) -> None:
    done = vramtop("estimate", "antigravity:fly", "--method", "formula")
    assert done.returncode == 3
    assert "antigravity:fly is Python code, which the formula cannot read; use --method traced" in done.stderr
