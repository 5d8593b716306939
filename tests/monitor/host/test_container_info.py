"""Containers and Slurm jobs of processes, from samples of cgroup files and environments."""

import os
from pathlib import Path
from typing import Any

import pytest

from vramtop.monitor.host import containers
from vramtop.monitor.host.containers import container_info

ID = "0123456789ab" + "c" * 52
POD = "1b2c3d4e-5f60-7182-93a4-b5c6d7e8f901"


@pytest.mark.parametrize(
    ("cgroup", "environ", "expected"),
    [
        (f"0::/system.slice/docker-{ID}.scope\n", {}, ("Docker container 0123456789ab",)),
        (f"12:memory:/docker/{ID}\n", {}, ("Docker container 0123456789ab",)),
        (f"0::/user.slice/libpod-{ID}.scope/container\n", {}, ("Podman container 0123456789ab",)),
        (
            f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{POD.replace('-', '_')}.slice/"
            f"cri-containerd-{ID}.scope\n",
            {},
            (f"pod {POD}",),
        ),
        (f"1:cpu:/kubepods/burstable/pod{POD}/{ID}\n", {"HOSTNAME": "train-0"}, ("pod train-0",)),
        (
            "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n",
            {"SLURM_JOB_NAME": "sft"},
            ("Slurm job 4711 step 0 (sft)",),
        ),
        ("8:memory:/slurm/uid_1000/job_42/step_batch/task_0\n", {}, ("Slurm job 42 step batch",)),
        ("0::/\n", {"SLURM_JOB_ID": "7"}, ("Slurm job 7",)),
        ("0::/user.slice/user-1000.slice/session-1.scope\n", {"HOSTNAME": "box"}, ()),
        ("0::/user.slice/job_1/x\n", {}, ()),
    ],
)
def test_schedulers_and_containers_are_recognised(tmp_path, monkeypatch, cgroup, environ, expected) -> None:
    (tmp_path / "cgroup").write_text(cgroup)

    def path(text: Any) -> Path:
        return tmp_path / "cgroup" if str(text).endswith("/cgroup") else Path(text)

    monkeypatch.setattr(containers, "Path", path)
    assert container_info(1, environ) == expected


def test_a_pod_has_the_name_of_its_logs_on_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup").write_text(f"1:cpu:/kubepods/burstable/pod{POD}/{ID}\n")
    (tmp_path / "logs" / f"research_sft-llama-0_{POD}").mkdir(parents=True)
    (tmp_path / "logs" / "kube-system_dns_00000000-0000-0000-0000-000000000000").mkdir()
    monkeypatch.setattr(containers, "_POD_LOGS", tmp_path / "logs")
    monkeypatch.setattr(containers, "Path", lambda text: tmp_path / "cgroup")
    assert container_info(1, {"HOSTNAME": "node-7"}) == ("pod research/sft-llama-0",)


def test_a_process_that_has_ended_runs_in_no_container() -> None:
    assert container_info(2**31 - 2, None) == ()
    assert isinstance(container_info(os.getpid(), {}), tuple)
