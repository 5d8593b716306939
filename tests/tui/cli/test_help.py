"""Help, and what people type in place of a command, a flag or a model."""

import os
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import vramtop

from vramtop.estimator.job.field_help import field_help
from vramtop.tui.cli.main import COMMANDS, build_parser
from vramtop.tui.cli.parsing.first_word import before_launch_line, with_command
from vramtop.tui.job.flags.job_flags import job_flags

GROUPS = ("before launch", "while it runs", "afterwards", "vramtop itself", "for scripts")


@pytest.mark.parametrize("words", [[], *([command] for command in COMMANDS)])
def test_short_help_is_short_and_says_how_many_flags_more_there_are(words: list[str]) -> None:
    short = vramtop(*words, "-h", code=0).out
    assert len(short.splitlines()) <= (91 if words else 62)
    full = vramtop(*words, "--help-all", code=0).out
    more = re.search(r"^(\d+) more flags: (vramtop.*) --help-all$", short, re.MULTILINE)
    flags = [len(re.findall(r"^  (?:-\w, )?--[\w-]+", text, re.MULTILINE)) for text in (short, full)]
    assert (int(more[1]), more[2]) == (flags[1] - flags[0], " ".join(["vramtop", *words])) if more else full == short


def test_commands_are_in_groups_by_what_one_wants_those_of_scripts_last() -> None:
    sections = dict(_section(part) for part in vramtop("-h", code=0).out.split("\n\n"))
    groups = {name: re.findall(r"^  (\w+)", text, re.MULTILINE) for name, text in sections.items() if name in GROUPS}
    assert list(groups) == list(GROUPS)
    assert sorted(command for names in groups.values() for command in names) == sorted(COMMANDS)
    sections = dict(_section(part) for part in vramtop("history", "--help", code=0).out.split("\n\n"))
    assert "--python" in sections["flags of every command"]


@pytest.mark.parametrize("words", [[], *([command] for command in COMMANDS)])
def test_help_fits_80_columns_and_explains_each_flag(words: list[str]) -> None:
    lines = vramtop(*words, "--help-all", code=0).out.splitlines()
    assert lines[0].startswith("usage: vramtop")
    assert max(len(line) for line in lines) <= 80
    assert "VALUE" not in " ".join(lines).replace("KEY=VALUE", "")
    for line, below in pairwise(lines):
        if line.startswith("  -") and not line.rstrip().endswith(","):
            assert line[28:].strip() or below.startswith("    "), line


def _section(part: str) -> tuple[str, str]:
    heading, _, rest = part.partition("\n")
    return heading, rest


@pytest.mark.parametrize("command", ["estimate", "fit", "wait", "preflight"])
def test_help_has_sentence_choices_and_default_of_each_setting(command: str) -> None:
    text = " ".join(vramtop(command, "--help-all", code=0).out.split())
    for flag, key in job_flags().items():
        assert f" {flag} " in text
        assert field_help(key).sentence in text
    assert "Choices: auto, fp32, fp16-mixed, bf16-mixed, bf16, fp16 (default: auto)" in text
    assert "--per-device-train-batch-size" in text
    assert "examples" in text


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["llama-3.1-8b", "--qlora"], ["fit", "llama-3.1-8b", "--qlora"]),
        (["job.toml"], ["fit", "job.toml"]),
        (["--ascii", "gpt2"], ["--ascii", "fit", "gpt2"]),
        (["--job", "gpt2", "--once"], ["--job", "gpt2", "--once"]),
        (["--model", "gpt2", "--lora"], ["fit", "--model", "gpt2", "--lora="]),
        (["--ascii", "-m", "gpt2"], ["--ascii", "fit", "-m", "gpt2"]),
        (["--seq_len", "4k", "gpt2"], ["fit", "--seq-len", "4k", "gpt2"]),
        (["-b4", "--lora", "gpt2", "--json"], ["fit", "-b4", "--lora=", "gpt2", "--json"]),
        (["--gpu", "h100", "gpt2", "--lora"], ["fit", "gpt2", "--lora", "--gpu", "h100"]),
        (["--gpu=h100", "--model", "gpt2"], ["fit", "--model", "gpt2", "--gpu=h100"]),
        (["--seq-len", "4k", "estimate", "gpt2"], ["estimate", "--seq-len", "4k", "gpt2"]),
        (["--gpu", "0", "--once"], ["--gpu", "0", "--once"]),
        (["--onse"], ["--onse"]),
        ([str(os.getpid()), "--json"], ["attach", str(os.getpid()), "--json"]),
        (["help", "fit"], ["fit", "--help"]),
        (["man"], ["completion", "man"]),
        (["version"], ["--version"]),
        (["fit", "gpt2"], ["fit", "gpt2"]),
    ],
)
def test_a_first_word_that_is_no_command_stands_for_one(words: list[str], meant: list[str]) -> None:
    assert with_command(words, tuple(COMMANDS), build_parser().flags_with_value()) == meant


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("rehearse python train.py", 1),
        ("fit --gpu-type 4090 /usr/bin/python3.12 -m torch.distributed.run train.py", 3),
        ("run torchrun train.py", 1),
        ("rehearse train.py --python python3 --offline", None),
        ("estimate gpt2 --engine vllm", None),
    ],
)
def test_a_launch_line_may_go_without_dashes(line: str, at: int | None) -> None:
    assert before_launch_line(line.split()) == at


def test_a_launch_line_without_dashes_is_read_like_one_with_them(in_folder: Path) -> None:
    said = []
    for words in (["fit", "python", "train.py"], ["fit", "--", "python", "train.py"]):
        said.append(vramtop(*words, code=2))
    assert said[0] == said[1]
    assert "train.py: no such file" in said[0].err


def test_a_process_opens_the_dashboard_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    pid = str(os.getpid())
    assert with_command([pid], tuple(COMMANDS), {}) == ["--pid", pid]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["llama3", "8b"], "there is no command or model 'llama3 8b'; did you mean llama-3-8b or llama-3.1-8b?"),
        (["llama3-9b", "--gpu", "a100-40gb"], "there is no command or model 'llama3-9b'; did you mean"),
        (["gpt2", "h100", "--lora"], "h100: write --gpu-type h100"),
        (["gpt2", "lora"], "lora: write --lora"),
        (["fit", "gpt2", "--compile", "maybe"], "maybe: unexpected word; after the job gpt2"),
        (["gpt2", "--seq-len", "abc"], "vramtop: --seq-len: 'abc' is not a number of tokens, such as 4096 or 4k"),
        (["gpt2", "--set", "training.micro_batch=x"], "the command line: training.micro_batch = 'x' is not a whole"),
        (["gpt2", "--gpu-type", "h10"], "no GPU 'h10' in the catalogue; similar: h100-80gb"),
        (["gpt2", "--gpu-type", "mi300x"], "mi300x: AMD is not supported; vramtop predicts the memory of NVIDIA GPUs"),
        (["fit", "suno/bark"], "is a speech model that is not known by name; vramtop rehearse -- python"),
        (["gpt2", "--gpu", "foo"], "or indices of GPUs here, like 0,1"),
        (["gpt2", "--gpu", "0xh100"], "vramtop fit: --gpu: 0 is not a valid number of GPUs"),
        (["wait", "gpt2", "--gpu", "h100"], "leave out --gpu-type, --gpu with a card, --gpu-memory"),
        (["measure", "gpt2", "--cpu", "--gpu", "h100"], "--cpu uses no GPU; leave out --gpu"),
        (["fit", "gpt2", "--contxt", "8192"], "there is no flag --contxt; did you mean --ctx?"),
        (["fit", "gpt2", "--tokens", "8192"], "there is no flag --tokens; see vramtop fit --help"),
        (["fit", "gpt2", "--gpus", "0,1"], "--gpus: it takes a number of GPUs; to choose GPUs, write --gpu 0,1"),
        (["fit", "gpt2", "--gpus", "8xh100", "--card", "a100"], "names a100, and --gpus names h100; give one"),
        (["fit", "gpt2", "--offload"], "choose --cpu-offload optimizer, --cpu-offload all"),
        (["fit", "gpt2", "--lion"], "there is no flag --lion; write --optimizer lion"),
        (["fit", "gpt2", "--8xh100"], "there is no flag --8xh100; write --gpu-type 8xh100"),
        (["fit", "gpt2", "--ppo"], "no flag describes this method; give the launch line"),
        (["fit", "gpt2", "--fa3"], "write --flash-attention 3"),
        (["fit", "gpt2", "--resume_from_checkpoint", "x"], "a run that is resumed needs the same memory"),
        (["fit", "gpt2", "--use-ddp"], "there is no flag --use-ddp; see vramtop fit --help"),
        (["rehearse", "--bf16", "--", "python"], "--bf16 describes a job for vramtop fit"),
        (["rehearse", "gpt2"], "gpt2 is not a program; vramtop estimate gpt2 --method traced traces a step of a model"),
        (["fit", "gpt2", "batch_size=4"], "batch_size=4: write --batch-size 4"),
        (["fit", "gpt2", "training.loss=full"], "training.loss=full: write --set training.loss=full"),
        (["fit", "llama3"], "did you mean llama-3-8b, llama-3.1-8b"),
        (["estimte", "gpt2"], "there is no command 'estimte'; did you mean vramtop estimate?"),
        (["2147483646"], "there is no process 2147483646 on this machine"),
        (["torchrun", "train.py"], "vramtop fit -- torchrun ... checks a launch line"),
        (["frobnicate"], "there is no command, model or job file 'frobnicate'"),
        (["nosuch.toml"], "nosuch.toml: no such file"),
        (["fit", "gpt3"], "not built in; did you mean gptj, gpt-2, gpt2?"),
        (["fit", "gpt2", "--model", "phi-2"], "both gpt2 and --model phi-2 name a model; give one"),
        (["fit", "gpt2", "--zero"], "vramtop fit: --zero: expected one argument; see vramtop fit --help"),
        (["record", "a.jsonl", "b.jsonl"], "unexpected: b.jsonl"),
    ],
)
def test_a_mistake_is_one_sentence_that_says_what_may_be_meant(words: list[str], sentence: str) -> None:
    printed = vramtop(*words, code=2)
    assert printed.out == ""
    assert sentence in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_file_that_is_no_job_is_told_what_reads_it(in_folder: Path) -> None:
    (in_folder / "train.log").write_text("loss 1.0\n")
    assert vramtop("train.log", code=2).err == (
        "vramtop: train.log is neither a recording nor a job file, which ends in .toml, .yaml, .yml or .json; "
        "vramtop explain train.log reads a log or a memory snapshot\n"
    )


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_a_recording_is_told_how_it_is_played(name: str, in_folder: Path) -> None:
    (in_folder / name).write_text("")
    error = vramtop(name, code=2).err
    assert f"vramtop --replay {name}" in error
    assert "neither a recording" not in error


@pytest.mark.parametrize(
    "words",
    [
        *(["attach", "1"], ["snapshot", "1"], ["history"], ["stream"], ["record", "a.jsonl"], ["export"]),
        *(["report", "history"], ["doctor"], ["config"], ["completion", "bash"]),
    ],
)
def test_a_command_that_is_about_no_job_refuses_a_launch_line(words, in_folder) -> None:
    printed = vramtop(*words, "--", "python", "train.py", code=2)
    assert printed.out == ""
    assert printed.err.startswith(f"vramtop: {words[0]} ")
    assert "takes no launch line" in printed.err
    assert not list(in_folder.iterdir())


def test_the_rest_of_the_line_after_exec_is_left_as_it_is() -> None:
    options = build_parser().parse_args(
        ["wait", "gpt2", "--batch_size", "2", "--exec", "python", "train.py", "--batch_size", "2", "--lora"]
    )
    assert options.exec == ["python", "train.py", "--batch_size", "2", "--lora"]
    assert options.flags == [("--batch-size", "2")]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_no_file_that_only_a_checkout_has(command: str) -> None:
    text = vramtop(command, "--help", code=0).out
    assert "exit codes" in text.lower()
    assert not re.search(r"\bdocs/|\.md\b|\bCHANGELOG|\bREADME", text)
