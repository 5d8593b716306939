"""``vramtop doctor``: the real command in its own process, and the text for hand-made facts."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from json_schemas import valid_json
from rich.cells import cell_len

from vramtop.monitor.doctor.driver_facts import DriverFacts, GpuFacts
from vramtop.monitor.doctor.report import DoctorReport, InterpreterFacts, find_issues
from vramtop.monitor.doctor.system import DataFile, DataFolderFacts, PermissionFacts, collect_system_facts
from vramtop.tui.cli.main import main
from vramtop.tui.draw.text_output import TextOutput
from vramtop.tui.reports.doctor_text import doctor_lines
from vramtop.tui.tty.terminal_facts import terminal_facts, terminal_issues

SECRETS = ("zaphod", "moonshot", "hunter2")


@pytest.fixture
def doctor(tmp_path):
    """Return a function that runs the command for a user with secrets, whose name is in every path."""

    def run(*words: str, **environ: str) -> subprocess.CompletedProcess:
        home = tmp_path / "zaphod" / "moonshot"
        (home / "venv/bin").mkdir(parents=True, exist_ok=True)
        if not (home / "venv/bin/python").exists():
            (home / "venv/bin/python").symlink_to(sys.executable)
        private = {
            "HOME": str(home.parent), "USER": "zaphod", "VIRTUAL_ENV": str(home / "venv"), "HF_TOKEN": "hunter2",
            "XDG_DATA_HOME": str(home / "data"), "WANDB_API_KEY": "hunter2", "MOONSHOT": "moonshot",
            "PYTHONIOENCODING": "utf-8",
        }  # fmt: skip
        return subprocess.run(
            [sys.executable, "-m", "vramtop.tui.cli", "doctor", *words],
            env=os.environ | private | environ, cwd=home, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    return run


@pytest.mark.parametrize("words", [(), ("--json",), ("--ascii",)])
def test_the_report_is_printed_anywhere_without_secrets(doctor, words):
    done = doctor(*words)
    assert done.returncode in (0, 3)  # with and without a driver
    assert done.stderr == ""
    assert [secret for secret in SECRETS if secret in done.stdout.lower()] == []
    assert "Python 3." in done.stdout or "python" in valid_json("doctor", done.stdout)["system"]
    assert "\x1b" not in done.stdout


def test_json_has_all_sections(doctor):
    done = doctor("--json")
    page = valid_json("doctor", done.stdout)
    assert list(page) == [
        "schema", "findings", "system", "driver", "gpus", "access", "terminal", "pythons", "files",
        "changed_settings",
    ]  # fmt: skip
    assert page["schema"] == 1
    assert done.returncode == (3 if page["driver"]["problem"] else 0)
    assert {finding["severity"] for finding in page["findings"]} <= {"error", "warning", "note"}
    assert page["pythons"][0]["named_by"] == "VIRTUAL_ENV"
    assert page["system"]["packages"]["psutil"]


def test_settings_are_named_without_their_values(doctor, tmp_path):
    (tmp_path / "config.toml").write_text('[dashboard]\nsort = "PID"\n[alerts]\ncommand = "curl zaphods-host"\n')
    (tmp_path / "config.toml").chmod(0o600)
    given = {"VRAMTOP_CONFIG": str(tmp_path / "config.toml"), "XDG_CONFIG_HOME": str(tmp_path)}
    assert valid_json("doctor", doctor("--json", **given).stdout)["changed_settings"] == [
        "alerts.command",
        "dashboard.sort",
    ]
    shown = doctor(**given).stdout
    assert "settings  not at their defaults: alerts.command, dashboard.sort" in shown
    assert "zaphods-host" not in shown
    assert "not at their defaults" not in doctor(**given | {"VRAMTOP_CONFIG": str(tmp_path / "none.toml")}).stdout


def test_without_utf8_the_report_is_ascii_in_80_columns(doctor):
    done = doctor(PYTHONIOENCODING="", PYTHONUTF8="0", LC_ALL="C")
    assert done.stdout.isascii()
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "drawn in ASCII: the locale" in " ".join(done.stdout.split())


def test_a_missing_python_is_a_usage_error(doctor):
    done = doctor("--python", "/zaphod/nothing")
    assert done.returncode == 2
    assert re.fullmatch(r"vramtop: --python: no such program; .*\n", done.stderr)


def test_a_launch_line_is_a_usage_error(capsys):
    assert main(["doctor", "--", "python", "train.py"]) == 2
    assert "takes no launch line" in capsys.readouterr().err


@pytest.fixture
def page() -> DoctorReport:
    """The report of a machine with a healthy GPU, a lost one and one that hangs."""
    able = {"memory_v2": "yes", "processes": "yes", "power": "NOT_SUPPORTED", "mig": "on"}
    good = GpuFacts(
        index=0, name="NVIDIA H100 80GB HBM3", uuid="GPU-12345678...", memory_info="v2", total_bytes=80 * 2**30,
        used_bytes=2**30, free_bytes=79 * 2**30, reserved_bytes=0, compute_mode="default", mig_slots=7, processes=2,
        processes_seen=2, processes_of_others=1, processes_without_memory=0, abilities=able,
        slowest_call="nvmlDeviceGetName", slowest_seconds=0.0123,
    )  # fmt: skip
    gpus = (good, GpuFacts(index=1, lost="GPU_IS_LOST"), GpuFacts(index=2, unanswered="nvmlDeviceGetName"))
    broken = DataFile(name="pending.json", size_bytes=3, mode="0600", state="damaged", sound=False, private=True)
    return DoctorReport(
        system=replace(
            collect_system_facts({}), environment={"CUDA_VISIBLE_DEVICES": "0", "TERM": "dumb"}, session=("tmux",)
        ),
        driver=DriverFacts(driver_version="580.65.06", nvml_version="13.580.65.06", cuda_version="13.0", gpus=gpus),
        access=PermissionFacts(root=False, devices=(), hidepid=None, sees_others=True, pidfd=True),
        files=DataFolderFacts(folder="~/.local/share/vramtop", there=True, writable=True, files=(broken,), set_aside=1),
        pythons=(InterpreterFacts(path="~/.../bin/python", named_by="VIRTUAL_ENV"),),
    )


@pytest.mark.parametrize("ascii_only", [False, True])
def test_issues_are_printed_first(page, ascii_only):
    terminal = TextOutput(colour_depth="none", ascii_only=ascii_only, width=80)
    shown = terminal_facts({"TERM": "dumb"}, page.system, terminal)
    found = (*find_issues(page), *terminal_issues(shown))
    lines = doctor_lines(page, shown, found, terminal)
    assert max(map(cell_len, lines)) <= 80
    text = "\n".join(lines)
    assert text.isascii() or not ascii_only
    sign = "x" if ascii_only else "✗"
    assert lines[2] == f"{sign} GPU 1 does not answer: GPU_IS_LOST"
    assert lines[3] == f"{sign} GPU 2: the driver has not answered nvmlDeviceGetName in time"
    assert text.index("pending.json: damaged") < text.index("CUDA_VISIBLE_DEVICES is set (0)") < text.index("vramtop  ")
    flat = " ".join(text.split())
    for words in (
        "driver 580.65.06", "3 GPUs", "NVIDIA H100 80GB HBM3", "GPU-12345678...", "7 MIG slots", "power NOT_SUPPORTED",
        "answers memory v2, processes", "2 processes: 2 visible from here, 1 of others", "nvmlDeviceGetName, 12.3 ms",
        "within tmux", "TERM=dumb: the dashboard does not open",
        "~/.../bin/python (VIRTUAL_ENV): torch and transformers not both installed", "1 set aside",
    ):  # fmt: skip
        assert words in flat


def test_a_machine_without_issues_is_reported_as_such(page):
    fine = replace(
        page,
        driver=replace(page.driver, gpus=page.driver.gpus[:1]),
        files=replace(page.files, files=(), set_aside=0),
        system=replace(page.system, environment={}, own_pid_namespace=False, wsl=False),
        pythons=(replace(page.pythons[0], torch="2.9", transformers="5.1"),),
    )
    terminal = TextOutput(colour_depth="none", ascii_only=False, width=80)
    shown = replace(terminal_facts({"TERM": "xterm"}, fine.system, terminal), columns=80, lines=24)
    assert (*find_issues(fine), *terminal_issues(shown)) == ()
    assert "✓ no problems found" in doctor_lines(fine, shown, (), terminal)
