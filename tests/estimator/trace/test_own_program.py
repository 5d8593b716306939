"""Whose program would run: what belongs to another user, or what others may write to, is refused with a sentence."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from counted_python import counted_python

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Program
from vramtop.estimator.trace.own_program import not_rehearsed, what_runs
from vramtop.estimator.trace.rehearsal import rehearse_job

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
STARTS: dict[Path, Callable[[], int]] = {}
"""How often the Python in a folder has been started."""
ONLY_OWN = ": vramtop rehearses only programs that you or root own; "


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a program, a package, a Python that counts its starts, and a job file."""
    folder = tmp_path / "run"
    (folder / "pack").mkdir(parents=True)
    (folder / "bin").mkdir()
    for name in ("train.py", "pack/train.py", "pack/__init__.py", "job.toml"):
        (folder / name).touch()
    monkeypatch.chdir(folder)
    with counted_python(folder / "bin" / "python", runs=False) as count:
        STARTS[folder] = count
        yield folder


def refusal(folder: Path, command: str = "bin/python train.py", **settings: object) -> str:
    """Return the sentence with which a program is refused; it must not have been started."""
    with pytest.raises(InputError) as refused:
        rehearse_job(Job(program=Program(command=command, folder=str(folder), **settings)), may_run=True)
    assert STARTS[folder]() == 0
    return refused.value.message


def test_ones_own_program_is_started(folder: Path) -> None:
    with pytest.raises(CannotTellError, match="the program ended without a result"):
        rehearse_job(Job(program=Program(command="bin/python train.py", folder=str(folder))), may_run=True)
    assert STARTS[folder]() == 1


@needs_root
@pytest.mark.parametrize(
    ("theirs", "command", "advice"),
    [
        ("train.py", "bin/python train.py", "rehearse a copy of it"),
        ("pack", "bin/python -m pack.train", "rehearse a copy of it"),
        ("pack/train.py", "bin/python -m pack.train", "rehearse a copy of it"),
        ("train.py", "bin/python -m torch.distributed.run --nproc-per-node 2 train.py", "rehearse a copy of it"),
        ("bin/python", "bin/python train.py", "name another Python with --python"),
        ("bin", "bin/python train.py", "name another Python with --python"),
        ("", "bin/python -c pass", "copy the program into your own folder"),
    ],
)
def test_what_belongs_to_another_user_is_not_started(folder: Path, theirs: str, command: str, advice: str) -> None:
    os.chown(folder / theirs, NOBODY, NOBODY)
    command = command.replace("bin/python", sys.executable) if theirs == "" else command
    said = refusal(folder, command)
    assert said.startswith(f"{folder / theirs} belongs to nobody")
    assert said.endswith(f"{ONLY_OWN}{advice}")


@needs_root
def test_another_users_job_file_does_not_decide_what_runs(folder: Path) -> None:
    os.chown(folder / "job.toml", NOBODY, NOBODY)
    said = refusal(folder, file=str(folder / "job.toml"))
    assert said == f"{folder}/job.toml belongs to nobody{ONLY_OWN}rehearse a copy of the file"


def test_what_anyone_may_write_to_is_not_started(folder: Path) -> None:
    (folder / "train.py").chmod(0o666)
    assert refusal(folder) == f"anyone may write to {folder}/train.py{ONLY_OWN}rehearse a copy of it"
    (folder / "train.py").chmod(0o644)
    folder.chmod(0o777)
    assert refusal(folder).startswith(f"anyone may write to {folder} ({folder}/bin/python is below it)")


@needs_root
def test_a_team_of_this_user_may_write_and_others_may_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(folder / "train.py", 0, 4711)
    (folder / "train.py").chmod(0o664)
    assert refusal(folder).startswith(f"another group may write to {folder}/train.py: ")
    monkeypatch.setattr(os, "getgroups", lambda: [0, 4711])
    assert what_runs(Program(command="bin/python train.py")).script == str(folder / "train.py")


@needs_root
def test_whoever_installed_the_python_of_vramtop_may_have_installed_the_programs(folder, monkeypatch) -> None:
    (folder / "bin" / "tune").write_text(f"#!{folder}/bin/python\n")
    (folder / "bin" / "tune").chmod(0o755)
    for name in ("bin", "bin/python", "bin/tune"):
        os.chown(folder / name, NOBODY, NOBODY)
    assert "belongs to nobody" in refusal(folder)
    monkeypatch.setattr(sys, "executable", str(folder / "bin" / "python"))
    found = what_runs(Program(command="bin/tune run"))
    assert (found.script, found.owner) == (str(folder / "bin" / "tune"), "nobody")
    os.chown(folder / "train.py", NOBODY, NOBODY)
    assert "train.py belongs to nobody" in refusal(folder)  # a program beside them is none of theirs


def test_what_would_run_is_said_in_full(folder: Path) -> None:
    (folder / "python").symlink_to("bin/python")
    found = what_runs(Program(command="./python train.py --lr 1", folder=str(folder), file=str(folder / "job.toml")))
    said = "./python train.py --lr 1", str(folder), str(folder / "job.toml")
    assert (found.command, found.folder, found.file) == said
    assert (found.interpreter, found.script) == (str(folder / "bin" / "python"), str(folder / "train.py"))
    assert what_runs(Program(command="./python -c pass", folder=str(folder))).script == str(folder)


def test_the_command_that_is_named_makes_the_rehearsal_that_was_looked_for(folder: Path) -> None:
    typed, read = Program(command="python train.py"), Program(command="python x.py", file=str(folder / "job.toml"))
    card = find_gpu("4090")
    assert " vramtop rehearse -- python train.py runs " in not_rehearsed(typed, None, None, None)
    assert " vramtop rehearse job.toml runs " in not_rehearsed(read, None, None, None)
    for memory in (None, card.total_bytes):
        assert " vramtop fit --rehearse --gpu-type rtx-4090 job.toml runs " in not_rehearsed(read, card, memory, None)
    assert " vramtop fit --rehearse job.toml runs " in not_rehearsed(read, card, 1, None)
