import pytest
import yaml
from json_schemas import valid_json

from vramtop.tui.cli.main import main

LLAMA = ["llama-3.1-8b", "--qlora", "--method", "formula"]


def test_instance_types_on_which_it_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *LLAMA, "--cloud", "--json"]) == 0
    said = valid_json("fit-cloud", capsys.readouterr().out)
    names = {each["name"] for each in said["instances"]}
    assert {"g6e.xlarge", "p5.48xlarge", "a2-highgpu-1g", "Standard_NC24ads_A100_v4"} < names
    assert not {"g5.xlarge", "g6.xlarge", "g4dn.xlarge"} & names  # 24 and 16 GB
    assert all(each["source"].startswith("https://") and (each["date"] or each["read"]) for each in said["instances"])
    skypilot = yaml.safe_load(said["skypilot"])
    assert skypilot["num_nodes"] == 1
    assert "L40S:1" in [each["accelerators"] for each in skypilot["resources"]["any_of"]]
    dstack = yaml.safe_load(said["dstack"])
    assert (dstack["type"], dstack["nodes"], dstack["resources"]["gpu"]["count"]) == ("task", 1, 1)
    assert dstack["resources"]["gpu"]["memory"] == "40GB.."


def test_one_card_and_several_instances(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["llama-3.1-8b", "--fsdp", "16", "--bf16", "--gpu-type", "h100", "--method", "formula", "--cloud"]
    assert main(["fit", *words]) == 0
    text = capsys.readouterr().out
    assert "num_nodes: 2\n" in text
    assert "  accelerators: H100:8\n" in text
    assert "[1] https://" in text
    assert main(["fit", *words, "--json"]) == 0
    said = valid_json("fit-cloud", capsys.readouterr().out)
    assert {each["gpu"] for each in said["instances"]} == {"h100-80gb"}
    assert {each["instances"] for each in said["instances"] if each["gpus"] == 8} == {2}


def test_cards_that_only_emulate_bf16_are_last_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "llama-3.1-8b", "--lora", "16", "--gradient-checkpointing", "--method", "formula", "--cloud"]
    assert main([*words, "--precision", "bf16", "--json"]) == 0
    said = valid_json("fit-cloud", capsys.readouterr().out)
    cards = [each["gpu"] for each in said["instances"] if each["verdict"] == "fits"]
    assert "v100-32gb" in cards
    assert "v100-32gb" not in cards[: cards.index("h100-80gb")]
    assert "V100" not in said["skypilot"]
    assert any("bf16, which" in note and "V100 32GB" in note for note in said["notes"])
    assert main([*words, "--precision", "fp16"]) == 0
    text = capsys.readouterr().out
    assert "emulate" not in text
    assert "V100" in text


def test_what_fits_nowhere_or_is_not_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "llama-3.1-70b", "--method", "formula", "--cloud"]) == 1
    assert "fits on no instance type" in capsys.readouterr().out
    assert main(["fit", *LLAMA, "--gpu-type", "5090", "--cloud"]) == 3
    assert "no instance type with RTX 5090 GPUs" in capsys.readouterr().out
