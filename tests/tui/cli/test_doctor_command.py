"""``vramtop doctor``: the real command in its own process, and the text for hand-made facts."""

import re
import sys
from typing import Any

import pytest
from command_line import vramtop_in
from json_schemas import valid_json
from rich.cells import cell_len

from vramtop.estimator.common.records import replace
from vramtop.monitor.doctor.facts import (
    DataFolderFacts,
    DoctorReport,
    DriverFacts,
    GpuFacts,
    InterpreterFacts,
    PermissionFacts,
)
from vramtop.monitor.doctor.issues import find_issues
from vramtop.monitor.doctor.report import collect_system_facts
from vramtop.monitor.snapshot.figures import Fault
from vramtop.tui.cli.commands.doctor import doctor_json, doctor_lines, terminal_facts, terminal_issues
from vramtop.tui.draw.text_output import TextOutput

SECRETS = ("zaphod", "moonshot", "hunter2")


@pytest.fixture
def doctor(tmp_path):
    """Return a function that runs the command for a user with secrets, whose name is in every path."""

    def run(*words: str, **environ: str) -> Any:
        home = tmp_path / "zaphod" / "moonshot"
        (home / "venv/bin").mkdir(parents=True, exist_ok=True)
        if not (home / "venv/bin/python").exists():
            (home / "venv/bin/python").symlink_to(sys.executable)
        private = {
            "HOME": str(home.parent), "USER": "zaphod", "VIRTUAL_ENV": str(home / "venv"), "HF_TOKEN": "hunter2",
            "XDG_DATA_HOME": str(home / "data"), "WANDB_API_KEY": "hunter2", "MOONSHOT": "moonshot",
            "PYTHONIOENCODING": "utf-8",
        }  # fmt: skip
        return vramtop_in(home, ("doctor", *words), private | environ)

    return run


@pytest.mark.parametrize("words", [(), ("--json",), ("--ascii",)])
def test_the_report_is_printed_anywhere_without_secrets(doctor, words):
    done = doctor(*words)
    assert done.returncode in (0, 3)  # with and without a driver
    assert done.stderr == ""
    assert [secret for secret in SECRETS if secret in done.stdout.lower()] == []
    assert "\x1b" not in done.stdout
    if words != ("--json",):
        assert "python 3." in done.stdout
        return
    page = valid_json("doctor", done.stdout)
    assert done.returncode == (3 if page["driver"]["problem"] else 0)
    assert page["pythons"][0]["named_by"] == "VIRTUAL_ENV"
    assert page["system"]["packages"]["psutil"]


def test_settings_are_named_without_their_values(doctor, tmp_path):
    (tmp_path / "config.toml").write_text('[dashboard]\nsort = "PID"\n[hosts]\nssh = "ssh zaphods-host"\n')
    (tmp_path / "config.toml").chmod(0o600)
    given = {"VRAMTOP_CONFIG": str(tmp_path / "config.toml"), "XDG_CONFIG_HOME": str(tmp_path)}
    assert valid_json("doctor", doctor("--json", **given).stdout)["changed_settings"] == [
        "dashboard.sort",
        "hosts.ssh",
    ]
    shown = doctor(**given).stdout
    assert "settings  not at their defaults: dashboard.sort, hosts.ssh" in shown
    assert "zaphods-host" not in shown
    assert "not at their defaults" not in doctor(**given | {"VRAMTOP_CONFIG": str(tmp_path / "none.toml")}).stdout


def test_without_utf8_the_report_is_ascii_in_80_columns(doctor):
    done = doctor(PYTHONIOENCODING="", PYTHONUTF8="0", LC_ALL="C")
    assert done.stdout.isascii()
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "ASCII drawing: the locale" in " ".join(done.stdout.split())


def test_a_missing_python_is_a_usage_error(doctor):
    done = doctor("--python", "/zaphod/nothing")
    assert done.returncode == 2
    assert re.fullmatch(r"vramtop: --python: no such program; .*\n", done.stderr)


def test_issues_are_printed_first_and_then_each_fact_with_its_name():
    report = DoctorReport(
        system=replace(collect_system_facts({}), environment={"CUDA_VISIBLE_DEVICES": "0", "TERM": "dumb"}),
        driver=DriverFacts(
            driver_version="580.65.06",
            cuda_version="13.0",
            gpus=(
                GpuFacts(
                    index=0, name="NVIDIA H100 80GB HBM3", uuid="GPU-12345678...", total_bytes=80 * 2**30, processes=2,
                    processes_seen=2, processes_of_others=1,
                    faults=(Fault(field="power_w", code="NOT_SUPPORTED", message="no power"),),
                ),
                GpuFacts(index=1, faults=(Fault(field=None, code="GPU_IS_LOST", message="it is lost"),)),
            ),
        ),
        access=PermissionFacts(root=False, devices=(), hidepid=None, sees_others=True, pidfd=True),
        files=DataFolderFacts(
            folder="~/.local/share/vramtop", there=True, writable=True, set_aside=1,
        ),
        pythons=(InterpreterFacts(path="~/.../bin/python", named_by="VIRTUAL_ENV"),),
    )  # fmt: skip
    output = TextOutput(colour_depth="none", ascii_only=False, width=100)
    terminal = terminal_facts({"TERM": "dumb"}, report.system, output)
    issues = (*find_issues(report), *terminal_issues(terminal))
    lines = list(doctor_lines(doctor_json(report, terminal, issues, ["dashboard.sort"]), output))
    assert max(map(cell_len, lines)) <= 80
    assert lines[2] == "✗ GPU 1: it is lost"
    flat = " ".join(" ".join(lines).split())
    assert flat.index("it is lost") < flat.index("CUDA_VISIBLE_DEVICES is set (0)") < flat.index("system ")
    for words in (
        "driver version 580.65.06 · cuda version 13.0", "NVIDIA H100 80GB HBM3", "GPU-12345678...", "total 80.00 GiB",
        "not read power_w NOT_SUPPORTED", "processes 2 · processes seen 2 · processes of others 1", "root no",
        "TERM=dumb: the dashboard cannot open", "path ~/.../bin/python · named by VIRTUAL_ENV", "set aside 1",
        "settings not at their defaults: dashboard.sort",
    ):  # fmt: skip
        assert words in flat
    fine = list(doctor_lines(doctor_json(report, terminal, (), []), output))
    assert "✓ no problems found" in fine
