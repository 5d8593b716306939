"""The command line of ssh, and what its failures mean."""

import subprocess
from pathlib import Path

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.monitor.fleet.ssh_command import SSH_VARIABLE, SshCommand


@pytest.fixture(autouse=True)
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return program


def test_a_planted_ssh_is_not_started(ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ssh.parent)
    for path in (".", "/nowhere:", ":/nowhere"):
        monkeypatch.setenv("PATH", path)
        with pytest.raises(
            InputError, match=r"there is no ssh in PATH .relative folders are ignored.; install OpenSSH"
        ):
            SshCommand(interval=1.0).arguments("a")
    ssh.parent.chmod(0o777)
    monkeypatch.setenv("PATH", str(ssh.parent))
    with pytest.raises(InputError, match=r"vramtop does not start .*ssh: anyone may write to"):
        SshCommand(interval=1.0).arguments("a")


def test_ssh_never_asks_and_takes_the_host_for_no_option(ssh: Path) -> None:
    words = SshCommand(interval=2.0).arguments("ann@node01")
    assert words[0] == str(ssh)
    assert "BatchMode=yes" in words
    assert words[-3:-1] == ["--", "ann@node01"]


def run_remotely(command: SshCommand, path: Path) -> str:
    """Run the last word of the command line as sshd does: with the user's shell."""
    line = command.arguments("node01")[-1]
    environ = {"PATH": f"{path}:/usr/bin:/bin", "HOME": str(path)}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environ, check=True).stdout  # noqa: S607


def write_echo(path: Path) -> None:
    path.write_text('#!/bin/sh\necho "${0##*/}" "$@"\n')
    path.chmod(0o755)


def test_the_remote_shell_gets_the_words(tmp_path: Path) -> None:
    (tmp_path / ".local" / "bin").mkdir(parents=True)
    write_echo(tmp_path / ".local" / "bin" / "vramtop")
    quiet = SshCommand(interval=0.5, attaches=False)
    assert run_remotely(quiet, tmp_path) == "vramtop stream --interval 0.5 --no-attach\n"
    assert run_remotely(SshCommand(interval=1.0), tmp_path) == "vramtop stream --interval 1\n"


@pytest.mark.parametrize(
    ("code", "errors", "words"),
    [
        (255, "ssh: connect to host a port 22: Connection refused\n", "Connection refused"),
        (255, "ann@a: Permission denied (publickey,password).\n", "asks for no password"),
        (255, "@@@ WARNING @@@\nHost key verification failed.\n", "host key"),
        (255, "", "gave no reason"),
        (127, "sh: 1: exec: vramtop: not found\n", "not installed there"),
        (2, "vramtop: argument COMMAND: invalid choice: 'stream'\n", "too old"),
        (0, "", "closed"),
        (3, "vramtop: the driver\x1b[31m is gone\n", "exit code 3: vramtop: the driver is gone"),
    ],
)
def test_a_failure_is_one_sentence(code: int, errors: str, words: str) -> None:
    sentence = SshCommand(interval=1.0).failure(code, errors)
    assert words in sentence
    assert sentence.isprintable()


def test_the_command_can_be_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SSH_VARIABLE, "ssh -F '/etc/my config'")
    assert SshCommand(interval=1.0).arguments("a")[1:3] == ["-F", "/etc/my config"]
    monkeypatch.setenv(SSH_VARIABLE, "ssh 'x")
    with pytest.raises(InputError):
        SshCommand(interval=1.0).arguments("a")
