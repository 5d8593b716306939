"""The whole report."""

import os
import sys

import msgspec
import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.monitor.doctor.report import collect_report


def test_the_report_contains_no_user_host_or_secret(
    driver, fake_gpu, fake_process, tmp_path, monkeypatch, issue_sentences
):
    home = tmp_path / "zaphod"
    venv = home / "moonshot" / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setattr("socket.gethostname", lambda: "heartofgold.example.org")
    secrets = ("zaphod", "moonshot", "heartofgold", "hunter2")
    environ = {
        "HOME": str(home), "USER": "zaphod", "VIRTUAL_ENV": str(venv), "WANDB_API_KEY": "hunter2",
        "PATH": f"{venv}/bin", "TERM": "zaphod-term", "COLORTERM": "heartofgold",
    }  # fmt: skip
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "moonshot"))
    (home / "moonshot" / "vramtop").mkdir()
    (home / "moonshot" / "vramtop" / "pending.json").write_text("{ hunter2")
    driver.gpus = [fake_gpu(name="NVIDIA of zaphod", processes=[fake_process(os.getpid(), 1)])]
    page = collect_report(environ)
    text = str(msgspec.to_builtins(page)) + issue_sentences(page)
    assert [secret for secret in secrets if secret in text.lower()] == []
    assert page.pythons[0].named_by == "VIRTUAL_ENV"
    assert page.pythons[0].path == "~/.../bin/python"
    assert page.files.folder == "~/.../vramtop"
    assert page.files.files[0].state == "damaged"


def test_a_missing_interpreter_is_an_input_error_without_its_path(driver):
    with pytest.raises(InputError) as error:
        collect_report({}, python="/home/zaphod/none")
    assert "zaphod" not in error.value.message


def test_a_hanging_interpreter_does_not_block_the_report(driver, tmp_path, issue_sentences):
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    page = collect_report({}, python=str(slow), seconds=1.0)
    assert not page.pythons[0].answered
    assert "has answered in time" in issue_sentences(page)
