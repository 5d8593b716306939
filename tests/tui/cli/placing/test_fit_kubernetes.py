import pytest
import yaml
from json_schemas import valid_json

from vramtop.tui.cli.main import main

LLAMA = ["llama-3.1-8b", "--qlora", "--gradient-checkpointing", "false", "--method", "formula"]


def rules(manifest: dict) -> dict[str, dict]:
    required = manifest["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    return {rule["key"]: rule for rule in term["matchExpressions"]}


def test_the_request_is_yaml_with_cards_that_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *LLAMA, "--kubernetes"]) == 0
    manifest = yaml.safe_load(capsys.readouterr().out)
    product = rules(manifest)["nvidia.com/gpu.product"]
    assert product["operator"] == "In"
    assert {"NVIDIA-A100-SXM4-80GB", "NVIDIA-L40S"} < set(product["values"])
    assert not {"NVIDIA-L4", "Tesla-T4", "NVIDIA-A30"} & set(product["values"])
    memory = rules(manifest)["nvidia.com/gpu.memory"]
    assert (memory["operator"], len(memory["values"])) == ("Gt", 1)
    assert 24 * 1024 < int(memory["values"][0]) < 40 * 1024
    (container,) = manifest["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1, "memory": "2Gi"}
    assert container["resources"]["requests"] == container["resources"]["limits"]


def test_ranks_share_pods_of_eight(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["llama-3.1-8b", "--fsdp", "16", "--bf16", "--gpu-type", "h100", "--method", "formula"]
    assert main(["fit", *words, "--kubernetes", "--json"]) == 0
    said = valid_json("fit-kubernetes", capsys.readouterr().out)
    assert (said["pods"], said["gpus"], said["verdict"]) == (2, ["h100-80gb"], "fits")
    assert said["manifest"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 8
    found = rules(said["manifest"])
    assert found["nvidia.com/gpu.product"]["values"] == ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe"]
    assert found["nvidia.com/gpu.count"]["values"] == ["7"]


def test_a_card_that_is_too_small_is_not_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *LLAMA, "--gpu-type", "4090", "--kubernetes"]) == 1
    assert yaml.safe_load(capsys.readouterr().out) is None  # comments only
    assert main(["fit", *LLAMA, "--gpu-memory", "48GiB", "--kubernetes"]) == 0
    assert set(rules(yaml.safe_load(capsys.readouterr().out))) == {"nvidia.com/gpu.memory"}


def test_cards_that_only_emulate_bf16_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "llama-3.1-8b", "--lora", "16", "--gradient-checkpointing", "--method", "formula", "--kubernetes"]
    assert main([*words, "--precision", "bf16", "--json"]) == 0
    said = valid_json("fit-kubernetes", capsys.readouterr().out)
    assert "v100-32gb" in said["gpus"]
    assert any("bf16, which" in note and "V100 32GB" in note for note in said["notes"])
    assert main([*words, "--precision", "fp16"]) == 0
    assert "emulate" not in capsys.readouterr().out
