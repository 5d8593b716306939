"""The manifests in docs: their fields are those of the API, and vramtop takes their commands."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from vramtop.tui.cli.main import build_parser

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
POD_FIELDS = {
    *("affinity", "automountServiceAccountToken", "containers", "hostPID", "initContainers", "nodeSelector"),
    *("restartPolicy", "runtimeClassName", "tolerations", "volumes"),
}
CONTAINER_FIELDS = {
    *("args", "command", "env", "image", "name", "ports", "readinessProbe", "resources", "securityContext"),
    "volumeMounts",
}


def exporter() -> dict[str, Any]:
    return yaml.safe_load((DOCS / "kubernetes" / "vramtop-exporter.yaml").read_text())


def documented() -> list[dict[str, Any]]:
    return [
        yaml.safe_load(block)
        for block in re.findall(r"```yaml\n(.*?)```", (DOCS / "kubernetes.md").read_text(), re.DOTALL)
    ]


def check_pod(pod: dict[str, Any], *, partial: bool = False) -> None:
    assert set(pod) <= POD_FIELDS
    volumes = {volume["name"] for volume in pod.get("volumes", ())}
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        assert set(container) <= CONTAINER_FIELDS
        assert partial or re.fullmatch(r"[\w./:-]+:[\w.]+", container["image"])
        assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes
        for wanted in container["resources"].values():
            assert set(wanted) <= {"cpu", "memory", "nvidia.com/gpu"}
            assert re.fullmatch(r"\d+(Mi|Gi)", wanted["memory"])


def test_the_exporter_runs_on_every_gpu_node_and_takes_no_gpu() -> None:
    manifest = exporter()
    assert (manifest["apiVersion"], manifest["kind"]) == ("apps/v1", "DaemonSet")
    spec = manifest["spec"]
    assert set(spec) <= {"selector", "updateStrategy", "template"}
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()  # else the API refuses it
    pod = spec["template"]["spec"]
    check_pod(pod)
    (container,) = pod["containers"]
    assert pod["hostPID"] is True
    assert not any("nvidia.com/gpu" in wanted for wanted in container["resources"].values())
    assert {each["name"]: each["value"] for each in container["env"]}["NVIDIA_VISIBLE_DEVICES"] == "all"


def test_vramtop_takes_the_exporters_command_and_listens_on_its_port() -> None:
    pod = exporter()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    program, *words = container["command"]
    options = build_parser().parse_args(words)
    assert (program, options.command) == ("vramtop", "export")
    (port,) = container["ports"]
    assert options.listen == f":{port['containerPort']}"
    assert container["readinessProbe"]["httpGet"] == {"path": "/metrics", "port": port["name"]}
    annotations = exporter()["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])


def test_the_manifests_of_the_page() -> None:
    part, job = documented()
    check_pod(part["spec"], partial=True)
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    check_pod(pod)
    (first,), (trainer,) = pod["initContainers"], pod["containers"]
    assert first["resources"] == trainer["resources"]  # the pod needs no more GPUs than its container
    assert pod["restartPolicy"] == "Never"


@pytest.mark.parametrize(("verdict", "expected"), [(0, 0), (1, 1), (2, 2), (3, 0)])
def test_what_the_init_container_makes_of_the_exit_codes(tmp_path: Path, verdict: int, expected: int) -> None:
    import subprocess

    program = tmp_path / "vramtop"
    program.write_text(f"#!/bin/sh\nexit {verdict}\n")
    program.chmod(0o700)
    first = documented()[1]["spec"]["template"]["spec"]["initContainers"][0]
    done = subprocess.run([*first["command"], *first["args"]], env={"PATH": str(tmp_path)}, check=False)
    assert done.returncode == expected
