"""Tools that are known by name only: their launch lines and files lead to what answers."""

from pathlib import Path

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.readers.config_file import read_config_file
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.tools.shared.unread_tools import UNREAD_TOOLS
from vramtop.tui.cli.main import main

GRPO = "as in vramtop fit MODEL --grpo"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python3 -m verl.trainer.main_ppo data.train_batch_size=256", ("verl is not read", GRPO)),
        ("torchrun -m verl.trainer.fsdp_sft_trainer model.x=y", ("verl's SFT trainer is not read", "fit MODEL --fsdp")),
        ("deepspeed --module openrlhf.cli.train_sft --pretrain gpt2", ("OpenRLHF is not read", "fit MODEL --lora")),
        ("python3 -m openrlhf.cli.train_ppo_ray --pretrain gpt2", ("OpenRLHF is not read", GRPO)),
        ("NPROC_PER_NODE=2 megatron sft --model gpt2", ("Megatron-SWIFT is not read", "fit MODEL --lora")),
        ("accelerate launch sdxl_train_network.py --network_dim 8", ("sd-scripts is not read", "vramtop rehearse --")),
    ],
)
def test_a_launch_line_of_one_is_refused_with_what_answers(tmp_path: Path, line: str, words: tuple[str, str]) -> None:
    with pytest.raises(InputError) as failed:
        read_launch(line.split(), environ={}, cwd=tmp_path)
    assert all(each in failed.value.message for each in words)


@pytest.mark.parametrize(
    ("name", "text", "tool"),
    [
        ("a.json", '{"--model_family": "sd3", "--train_batch_size": 1}', "SimpleTuner"),
        ("b.yaml", "actor_rollout_ref: {model: {path: gpt2}}", "verl"),
        ("c.toml", 'micro_batch_size_per_gpu = 1\n[model]\ntype = "sdxl"\n', "diffusion-pipe"),
        ("d.yaml", "max_seq_len: 2048\nglobal_train_batch_size: 8\n", "LLM Foundry"),
        ("e.yaml", "task: llm-sft\nbase_model: gpt2\nproject_name: x\n", "AutoTrain"),
    ],
)
def test_a_file_of_one_is_named(tmp_path: Path, capsys, name: str, text: str, tool: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=f"{tool} is not read; "):
        read_config_file(path)
    assert main(["fit", str(path), "--gpu-type", "h100"]) == 2
    assert f"{name}: {tool} is not read; " in capsys.readouterr().err


def test_unsloths_file_may_leave_the_model_out(tmp_path: Path, capsys) -> None:
    path = tmp_path / "studio.yml"
    path.write_text("training: {max_seq_length: 4096, batch_size: 4}\nlora: {lora_r: 16}\n")
    assert main(["fit", str(path), "--gpu-type", "h100"]) == 2
    assert "studio.yml does not set model.id; add it with --set model.id=" in capsys.readouterr().err


def test_a_shell_script_is_a_job(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = "--model_name_or_path gpt2 --per_device_train_batch_size 1 --max_length 512"
    Path("run.sh").write_text(f"#!/bin/bash\ntrl sft {flags} --dataset_name x\n")
    for words in (["run.sh"], ["fit", "--", "bash", "run.sh"], ["fit", "--", "./run.sh"]):
        at = words.index("--") if "--" in words else len(words)
        assert main([*words[:at], "--gpu-type", "h100", *words[at:]]) == 0
        assert "note: The launch line is run.sh, line 2." in capsys.readouterr().out
    Path("verl.sh").write_text("python3 -m verl.trainer.main_ppo x=1\n")
    assert main(["verl.sh"]) == 2
    assert "verl.sh, line 1: verl is not read; " in capsys.readouterr().err


def test_each_says_what_to_do() -> None:
    assert all("vramtop " in tool.sentence for tool in UNREAD_TOOLS)
