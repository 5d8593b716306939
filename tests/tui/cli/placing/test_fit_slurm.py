import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from json_schemas import valid_json

from vramtop.tui.cli.main import main

LLAMA = ("llama-3.1-8b", "--qlora", "--gradient-checkpointing", "false", "--method", "formula")  # between 24 and 40 GiB
Fit = Callable[..., tuple[int, str, str]]


def node(
    name: str, gres: str, *, state: str = "IDLE", used: str | None = None, features: str = "ib", **more: str
) -> str:
    fields = {
        "NodeName": name, "CPUAlloc": "0", "CPUTot": "64", "ActiveFeatures": features, "Gres": gres,
        **({"GresUsed": used} if used else {}), "RealMemory": "500000", "AllocMem": "0", "State": state,
        "Partitions": "gpu", **more,
    }  # fmt: skip
    return " ".join(f"{key}={value}" for key, value in fields.items())


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Fit:
    """Return exit code, output and error output of ``vramtop fit --slurm`` where scontrol prints this."""

    def ask(nodes: list[str] | None, *words: str, partitions: str = "PartitionName=gpu Default=YES State=UP") -> Any:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        if nodes is not None:
            (tmp_path / "node").write_text("\n".join(nodes) + "\n")
            (tmp_path / "partition").write_text(partitions + "\n")
            program = folder / "scontrol"
            program.write_text(
                f'#!/bin/sh\n[ "$1" = show ] && while read -r line; do echo "$line"; done < {tmp_path}/"$2"\n'
            )
            program.chmod(stat.S_IRWXU)
        monkeypatch.setenv("PATH", str(folder))
        code = main(["fit", *(words or LLAMA), "--slurm"])
        return code, *capsys.readouterr()

    return ask


def requests(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]


def test_a_batch_script_asks_for_the_smallest_card_that_is_free(fit: Fit) -> None:
    code, text, _ = fit([
        node("a1", "gpu:a100:4", used="gpu:a100:4", features="gpu_mem_40gb"),
        node("h1", "gpu:h100:8"),
        node("b1", "gpu:a30:4"),
        node("d1", "gpu:l40s:8", state="DOWN*+DRAIN"),
    ])  # fmt: skip
    assert code == 0
    assert text.startswith("#!/bin/bash\n")
    assert all(line.startswith("#") for line in text.splitlines())
    lines = requests(text)
    assert lines[:4] == ["--partition=gpu", "--nodes=1", "--ntasks-per-node=1", "--gres=gpu:h100:1"]
    assert lines[4].startswith("--mem=")
    assert "It would start now." in text
    assert "1 node with GPUs that are down, drained or not answering" in text


def test_a_busy_cluster_can_take_it_later(fit: Fit) -> None:
    busy = [node("a1", "gpu:a100:4", used="gpu:a100:4", features="gpu_mem_80gb", State="ALLOCATED")]
    code, text, _ = fit(busy)
    assert (code, requests(text)[3]) == (0, "--gres=gpu:a100:1")
    assert "It would wait" in text
    code, text, _ = fit(busy, *LLAMA, "--json")
    said = valid_json("fit-slurm", text)
    assert (said["verdict"], said["partitions"], said["partitions_now"]) == ("fits", ["gpu"], [])
    assert said["request"] == [
        f"--{word}" for word in ("partition=gpu", "nodes=1", "ntasks-per-node=1", "gres=gpu:a100:1", "mem=2G")
    ]


def test_ranks_spread_over_nodes_of_one_partition(fit: Fit) -> None:
    sixteen = ("llama-3.1-8b", "--fsdp", "16", "--bf16", "--method", "formula")
    nodes = [node(f"h{i}", "gpu:h100:8", Partitions="big" if i < 2 else "gpu") for i in range(3)]
    partitions = "PartitionName=gpu Default=YES State=UP\nPartitionName=big State=UP MaxNodes=2"
    code, text, _ = fit(nodes, *sixteen, partitions=partitions)
    assert (code, requests(text)[:4]) == (
        0,
        ["--partition=big", "--nodes=2", "--ntasks-per-node=8", "--gres=gpu:h100:8"],
    )
    code, text, _ = fit(nodes, *sixteen, partitions=partitions.replace("=2", "=1"))
    assert (code, requests(text)) == (1, [])
    assert "No partition can take it." in text


def test_a_card_that_is_not_known_has_no_verdict(fit: Fit) -> None:
    code, text, _ = fit([node("n1", "gpu:4")])
    assert (code, requests(text)) == (3, [])
    assert "neither the node's GPU type nor its features name the card" in text
    code, text, _ = fit([node("n1", "gpu:4")], *LLAMA, "--gpu-memory", "48GiB")
    assert (code, requests(text)[3]) == (0, "--gres=gpu:1")


def test_a_name_of_two_cards_is_unknown_where_only_the_larger_does(fit: Fit) -> None:
    large = (
        "llama-3.1-8b",
        "--lora",
        "--dtype",
        "float32",
        "--bf16",
        "--batch-size",
        "1",
        "--seq-len",
        "2048",
        "--method",
        "formula",
    )
    code, text, _ = fit([node("a1", "gpu:a100:4")], *large)
    assert (code, requests(text)) == (3, [])
    assert "A100 40GB or A100 80GB" in text
    code, text, _ = fit([node("a1", "gpu:a100:4", features="a100_80gb")], *large)
    assert (code, requests(text)[3]) == (0, "--gres=gpu:a100:1")


def test_a_constraint_keeps_the_job_off_cards_of_the_same_name(fit: Fit) -> None:
    two = [node("a1", "gpu:a100:4", features="gpu_mem_40gb"), node("a2", "gpu:a100:4", features="ib,gpu_mem_80gb")]
    large = (
        "llama-3.1-8b",
        "--lora",
        "--dtype",
        "float32",
        "--bf16",
        "--batch-size",
        "1",
        "--seq-len",
        "2048",
        "--method",
        "formula",
    )
    code, text, _ = fit(two, *large)
    assert (code, requests(text)[-1]) == (0, "--constraint=gpu_mem_80gb")
    untyped = [node("a1", "gpu:4"), node("h1", "gpu:4", features="h200")]
    code, text, _ = fit(untyped)
    assert (code, requests(text)[3], requests(text)[-1]) == (0, "--gres=gpu:1", "--constraint=h200")


def test_a_mig_device_takes_a_job_of_one_rank_if_the_least_that_it_may_have_is_enough(fit: Fit) -> None:
    code, text, _ = fit([node("m1", "gpu:1g.10gb:7")])
    assert code == 1
    code, text, _ = fit([node("m1", "gpu:a100_4g.40gb:1")])
    assert (code, requests(text)[3]) == (0, "--gres=gpu:a100_4g.40gb:1")
    code, text, _ = fit([node("m1", "gpu:a100_4g.40gb:2")], "gpt2", "--ddp", "2", "--method", "formula")
    assert code == 1
    assert "a MIG device takes only jobs with one rank" in text


def test_nodes_without_enough_ram_are_passed_over(fit: Fit) -> None:
    offload = ("llama-3.1-8b", "--zero", "3", "--cpu-offload", "all", "--bf16", "--gpus", "8", "--method", "formula")
    code, text, _ = fit(
        [node("h1", "gpu:h100:8", RealMemory="64000"), node("h2", "gpu:h100:8", RealMemory="2000000")], *offload
    )
    assert code == 0
    memory = next(line for line in requests(text) if line.startswith("--mem="))
    assert 100 < int(memory.removeprefix("--mem=").removesuffix("G")) < 2000
    code, text, _ = fit([node("h1", "gpu:h100:8", RealMemory="64000")], *offload)
    assert code == 1


def test_a_planted_scontrol_is_not_started(fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fit([node("h1", "gpu:h100:8")])[0] == 0
    (tmp_path / "bin").chmod(0o777)
    code, _, complaint = fit([node("h1", "gpu:h100:8")])
    assert code == 3
    assert f"vramtop does not start {tmp_path}/bin/scontrol: anyone may write to {tmp_path}/bin" in complaint
    (tmp_path / "bin").chmod(0o700)
    monkeypatch.chdir(tmp_path / "bin")
    for path in (".", "/nowhere:"):
        monkeypatch.setenv("PATH", path)
        assert main(["fit", *LLAMA, "--slurm"]) == 3


def test_without_scontrol_only_a_named_card_can_be_asked_for(fit: Fit) -> None:
    code, text, complaint = fit(None)
    assert (code, text) == (3, "")
    assert complaint == (
        "vramtop: there is no scontrol in PATH, so the cluster's cards are unknown; run this on a login node, "
        "or name a card with --gpu-type\n"
    )
    code, text, _ = fit(None, *LLAMA, "--gpu-type", "h100")
    assert (code, requests(text)[:3]) == (0, ["--nodes=1", "--ntasks-per-node=1", "--gres=gpu:h100:1"])
    code, text, _ = fit(None, *LLAMA, "--gpu-type", "4090")
    assert (code, requests(text)) == (1, [])


def test_a_controller_that_does_not_answer_is_one_sentence(fit: Fit, tmp_path: Path) -> None:
    fit([node("n1", "gpu:4")])
    program = tmp_path / "bin" / "scontrol"
    program.write_text("#!/bin/sh\necho 'slurm_load_node error: Unable to contact slurm controller' >&2\nexit 1\n")
    code, text, complaint = fit(None)
    assert (code, text) == (3, "")
    assert complaint == (
        "vramtop: scontrol show node -o failed: slurm_load_node error: Unable to contact slurm controller\n"
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--wait",), "--wait waits for GPUs of this machine; leave out --slurm"),
        (("--gpu", "0"), "--gpu names GPUs of this machine"),
        (("--kubernetes",), "not allowed with argument"),
        (("--host-memory", "64"), "--host-memory describes one machine"),
    ],
)
def test_what_makes_no_sense_together(fit: Fit, words: tuple[str, ...], complaint: str, capsys: Any) -> None:
    try:
        code, _, error = fit([node("n1", "gpu:4")], *LLAMA, *words)
    except SystemExit as end:
        code, error = int(end.code or 0), capsys.readouterr().err
    assert code == 2
    assert complaint in error
