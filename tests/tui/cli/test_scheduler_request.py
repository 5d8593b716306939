from pathlib import Path

import pytest
import yaml
from command_line import vramtop
from json_schemas import valid_json

LLAMA = ["llama-3.1-8b", "--qlora", "--gradient-checkpointing", "false", "--method", "formula"]  # between 24 and 40 GiB
SIXTEEN = ["llama-3.1-8b", "--fsdp", "16", "--bf16", "--gpu-type", "h100", "--method", "formula"]


def test_a_batch_script_asks_for_gpus_and_ram_and_names_cards_that_fit() -> None:
    lines = vramtop("fit", *LLAMA, "--slurm", code=0).out.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert all(line.startswith("#") for line in lines)
    asked = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert asked == ["--nodes=1", "--ntasks-per-node=1", "--gres=gpu:1", "--mem=2G"]
    cards = next(line for line in lines if "Cards on which it fits" in line)
    assert "A100 40GB" in cards
    assert "RTX 4090" not in cards


def test_ranks_share_nodes_of_eight() -> None:
    said = valid_json("fit-scheduler", vramtop("fit", *SIXTEEN, "--slurm", "--json", code=0).out)
    assert (said["nodes"], said["gpus_per_node"], said["cards"], said["verdict"]) == (2, 8, ["H100 80GB"], "fits")
    assert said["request"][:3] == ["#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=8", "#SBATCH --gres=gpu:8"]


def test_a_pod_asks_for_gpus_that_are_large_enough() -> None:
    spec = yaml.safe_load(vramtop("fit", *LLAMA, "--kubernetes", code=0).out)["spec"]
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = required["nodeSelectorTerms"]
    [rule] = term["matchExpressions"]
    assert (rule["key"], rule["operator"]) == ("nvidia.com/gpu.memory", "Gt")
    assert 24 * 1024 < int(rule["values"][0]) < 40 * 1024
    assert spec["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 1, "memory": "2Gi"}}


@pytest.mark.parametrize("flag", ["--slurm", "--kubernetes"])
def test_a_card_that_is_too_small_is_not_asked_for(flag: str) -> None:
    assert yaml.safe_load(vramtop("fit", *LLAMA, "--gpu-type", "4090", flag, code=1).out) is None  # comments only
    vramtop("fit", *LLAMA, "--gpu-memory", "48GiB", flag, code=0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--gpu", "0"), "--gpu names GPUs of this machine; with --slurm give --gpu-type"),
        (("--gpus", "2"), "--gpus 2: the job has 1 rank, one on each GPU"),
        (("--host-memory", "64GiB"), "--slurm requests the RAM that the job needs"),
        (("--kubernetes",), "not allowed with argument"),
    ],
)
def test_options_for_this_machine_are_refused(words: tuple[str, ...], sentence: str) -> None:
    assert sentence in vramtop("fit", *LLAMA, *words, "--slurm", code=2).err


def test_one_process_on_several_gpus_is_one_task(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        '[model]\nid = "llama-3.1-8b"\n[training]\nmicro_batch = 1\nsequence_length = 512\nprecision = "bf16"\n'
        '[parallel]\ndevice_map = "auto"\npipeline = 4\n'
    )
    said = vramtop("fit", str(job), "--slurm", "--gpu-type", "a100-80", "--method", "formula", code=0).out
    assert "4 GPUs of one node or pod, all of one process." in said
    assert "#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:4" in said
