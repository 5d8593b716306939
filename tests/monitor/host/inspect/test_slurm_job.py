from pathlib import Path

import pytest

from vramtop.monitor.host.inspect.process_details import with_job_names

RECORD = "JobId=4711 JobName=sft llama UserId=ann(1001) GroupId=ann(1001) MCS_label=N/A Priority=1 JobState=RUNNING"


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "scontrol"
    program.write_text(f'#!/bin/sh\n[ "$*" = "show job 4711 -o" ] || exit 1\necho "{RECORD}"\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("scontrol")
@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("Slurm job 4711 step 0", "Slurm job 4711 step 0 (sft llama, of ann)"),
        ("Slurm job 4711", "Slurm job 4711 (sft llama, of ann)"),
        ("Slurm job 4711 step 0 (own name)", "Slurm job 4711 step 0 (own name)"),
        ("Slurm job 12", "Slurm job 12"),  # the controller has forgotten it
        ("pod research/sft-0", "pod research/sft-0"),
    ],
)
def test_a_job_without_a_name_has_that_of_the_controller(place: str, expected: str) -> None:
    assert with_job_names([place]) == (expected,)


def test_without_scontrol_the_number_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert with_job_names(["Slurm job 4711"]) == ("Slurm job 4711",)
