"""Rehearsals that are kept: run again when anything that the program depended on is another, and why that is known."""

import contextlib
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from slow_cases import first_quick

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.isolation.seen import signature
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Program
from vramtop.estimator.trace import kept_rehearsals
from vramtop.estimator.trace.kept_rehearsals import KeptRehearsal
from vramtop.estimator.trace.rehearsal import rehearse_job

pytest.importorskip("torch")

PROGRAM = """
import ctypes, os, sqlite3, subprocess, sys, torch
from sizes import WIDE
if os.path.exists("override.txt"):
    WIDE = int(open("override.txt").read())
n = int(os.environ.get("BATCH", "8")) + len(os.listdir("shards"))
n += len(sqlite3.connect("data.sqlite").execute("select * from t").fetchall())
n += int(subprocess.run(["/bin/sh", "-c", ". ./settings.sh; echo $N"], capture_output=True).stdout)
subprocess.run("./script.sh", check=True)
ctypes.CDLL(None).open(b"native.bin", 0)
open({staged!r}).read()
here = os.getcwd()
os.chdir("current")
os.chdir(here)
os.symlink("data", "latest")
open("latest/config").read()
os.rename("draft.txt", "final.txt")
open("final.txt").read()
for entry in os.scandir("kinds"):
    n += entry.is_dir(follow_symlinks=False)
os.listdir(os.open("opened", os.O_RDONLY))
try:
    os.mkdir("marker")
except FileExistsError:
    n += 1
open(sys.prefix + "/share/table", "rb").read(1)
open("large.bin", "rb").read(1)
open("log.txt", "w").write("thrown away")
net = torch.nn.Linear(WIDE, 64).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(4):
    net(torch.randn(n, WIDE).cuda()).sum().backward()
    optimizer.step()
"""


def staged() -> Path:
    """Return a file where data is staged; each process that runs tests has its own, though all are forks of one."""
    return Path(f"/dev/shm/vramtop-test-{os.getpid()}-staged")  # noqa: S108


def program() -> str:
    return PROGRAM.replace("{staged!r}", repr(str(staged())))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a program in an environment of its own and all that it reads."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name, text in {
        "train.py": program(),
        "sizes.py": "WIDE = 64",
        "settings.sh": "N=1",
        "shards/0": "",
        "native.bin": "x",
        "large.bin": "x" * (1 << 20),
        "log.txt": "an old log",
        "data/config": "x",
        "draft.txt": "x",
        "kinds/a": "",
        "opened/a": "",
        "v1/x": "",
        "v2/x": "",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "current").symlink_to("v1")
    with sqlite3.connect(folder / "data.sqlite") as data:
        data.execute("create table t (a)")
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", "env"], cwd=folder, check=True
    )
    packages = "".join(f"import site; site.addsitedir({each!r})\n" for each in sys.path if "site-packages" in each)
    (next(folder.glob("env/lib/*/site-packages")) / "torch-of-tests.pth").write_text(packages)
    shutil.copy("/bin/sh", folder / "shell")
    (folder / "script.sh").write_text(f"#!{folder}/shell\n")
    (folder / "script.sh").chmod(0o700)
    (folder / "env" / "share").mkdir()
    (folder / "env" / "share" / "table").write_text("x")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    staged().write_text("x")
    yield folder
    staged().unlink()


def rehearsed(*, may_run: bool = True, environ: dict[str, str] | None = None, **settings: object) -> Budget:
    program = Program(command="env/bin/python train.py", folder=str(Path.cwd()), **settings)
    return rehearse_job(Job(program=program), may_run=may_run, environ={**os.environ, **(environ or {})}).budget


def kept() -> KeptRehearsal:
    (file,) = kept_rehearsals._newest_first()
    return kept_rehearsals.find(file.stem)


def changed(found: KeptRehearsal, folder: str = "/") -> set[str]:
    paths = {path: facts for path, facts in found.paths.items() if path.startswith((folder, str(staged())))}
    return {path for path, (use, was) in paths.items() if signature(path, use) != was}


def append_row() -> None:
    with sqlite3.connect("data.sqlite") as data:
        data.execute("insert into t values (1)")


def rewrite_within_its_time(name: str) -> None:
    before = Path(name).stat()
    with Path(name).open("r+b") as file:
        file.write(b"y")
    os.utime(name, ns=(before.st_atime_ns, before.st_mtime_ns))


def relink() -> None:
    Path("current").unlink()
    Path("current").symlink_to("v2")


def make_folder_of_a_file() -> None:
    Path("kinds/a").unlink()
    Path("kinds/a").mkdir()


CHANGES: dict[str, Callable[[], object]] = {
    "train.py": lambda: Path("train.py").write_text(program() + "\n"),
    "sizes.py": lambda: Path("sizes.py").write_text("WIDE = 96"),
    "override.txt": lambda: Path("override.txt").write_text("128"),
    "shards": lambda: Path("shards/1").touch(),
    "data.sqlite": append_row,
    "settings.sh": lambda: Path("settings.sh").write_text("N=2"),
    "shell": lambda: shutil.copy("/bin/true", "shell"),
    "native.bin": lambda: Path("native.bin").unlink(),
    "env/share/table": lambda: Path("env/share/table").write_text("y"),
    "current": relink,
    "data/config": lambda: Path("data/config").write_text("y"),
    "draft.txt": lambda: Path("draft.txt").write_text("y"),
    "kinds": make_folder_of_a_file,
    "opened": Path("opened/b").touch,
    "env/lib/site-packages": lambda: Path(place(Path(), "env/lib/site-packages"), "sitecustomize.py").touch(),
    "staged": lambda: staged().write_text("y"),
    "marker": Path("marker").mkdir,
    "large.bin": lambda: rewrite_within_its_time("large.bin"),
}


def place(folder: Path, name: str) -> str:
    if name == "staged":
        return str(staged())
    return str(next((folder / "env/lib").glob("*/site-packages")) if name == "env/lib/site-packages" else folder / name)


def test_all_that_a_program_depends_on_counts_and_its_own_writes_do_not(folder: Path) -> None:
    first = rehearsed(environ={"BATCH": "8"})
    found = kept()
    assert found.refused is None
    assert changed(found) == set()
    assert rehearsed(may_run=False, environ={"BATCH": "8"}).rehearsal == first.rehearsal
    assert rehearsed(may_run=False, environ={"BATCH": "8", "TERM": "dumb", "SSH_TTY": "/dev/pts/9"}) == first
    with pytest.raises(CannotTellError, match="not rehearsed: the variable BATCH has changed since"):
        rehearsed(may_run=False, environ={"BATCH": "500000"})
    large = rehearsed(environ={"BATCH": "500000"})
    assert large.peak.allocated_bytes > first.peak.allocated_bytes + (64 * 500_000 * 4)
    assert "Rehearsed again, because the variable BATCH has changed." in large.assumptions
    found = kept()
    assert not any("BATCH" in text or "500000" in text for text in found.variables.values())
    assert rehearsed(may_run=False, environ={"BATCH": "500000"}) == replaced_notes(large)
    Path("log.txt").write_text("a newer log")
    Path("unrelated").mkdir()
    (Path("unrelated") / "file").touch()
    before = changed(found)
    assert before <= {str(folder)}, before  # modules are looked for in it, so a new name counts
    for name, change in CHANGES.items():
        change()
        now = changed(found, str(folder))
        assert now - before - {str(folder)} == {place(folder, name)}, name
        before = now
    with pytest.raises(CannotTellError, match=r"not rehearsed: /\S+ has changed since the last rehearsal; vramtop"):
        rehearsed(may_run=False, environ={"BATCH": "500000"})
    for path in ("sizes.py", "train.py"):  # what stands there now is not opened
        Path(path).unlink()
        os.mkfifo(path)
        assert found.what_changed(None)
        Path(path).unlink()
        Path(path).symlink_to("/dev/zero")
        assert found.what_changed(None)


def replaced_notes(budget: Budget) -> Budget:
    """Return the budget as it is kept."""
    from vramtop.estimator.common.records import replace

    return replace(budget, assumptions=tuple(each for each in budget.assumptions if "again" not in each))


@pytest.mark.parametrize("with_offline", first_quick([False, True]))
def test_what_asks_the_network_is_not_kept_unless_it_is_offline(folder: Path, monkeypatch, with_offline) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    asks = "import socket; s = socket.socket(); s.setblocking(False); s.connect_ex(('192.0.2.1', 443))"
    tells = "\nimport os, torch\nfill = torch.ones(int(os.environ.get('HF_HUB_OFFLINE', '0')) << 20, device='cuda')\n"
    Path("train.py").write_text(asks + tells + program())
    found = rehearsed()
    said = "This rehearsal is not kept: it used the network (192.0.2.1:443), which --offline prevents."
    assert said in found.assumptions
    with pytest.raises(CannotTellError, match="not rehearsed"):
        rehearsed(may_run=False)
    offline = None
    if with_offline:
        with contextlib.suppress(CannotTellError):  # a kernel without namespaces
            offline = rehearsed(offline=True)
    if offline is not None:
        assert rehearsed(may_run=False, offline=True) == offline
        told = offline.peak.allocated_bytes - found.peak.allocated_bytes
        assert told == 4 << 20  # the hub's library need not try for a minute


@pytest.mark.slow
def test_a_launcher_that_asks_for_the_port_of_a_run_beside_it_is_no_network(folder: Path) -> None:
    Path("train.py").write_text(program())
    command = "env/bin/python -m accelerate.commands.launch --multi_gpu --num_processes 2"
    with socket.create_server(("127.0.0.1", 0)) as of_the_run:
        command += f" --main_process_port {of_the_run.getsockname()[1]} train.py"
        job = Job(program=Program(command=command, folder=str(folder)))
        found = rehearse_job(job, may_run=True, environ=dict(os.environ)).budget
        assert rehearse_job(job, may_run=False, environ=dict(os.environ)).budget == found


def test_machines_that_share_a_cache_have_rehearsals_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    here = kept_rehearsals.key_of(Path("python"), ["train.py"], "/data", {})
    assert kept_rehearsals.key_of(Path("python"), ["train.py"], "/data", {}) == here
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="another"))
    assert kept_rehearsals.key_of(Path("python"), ["train.py"], "/data", {}) != here


def test_a_rehearsal_of_another_name_is_not_looked_for_elsewhere(tmp_path: Path) -> None:
    for name in ("../x", "a/b", "/etc/passwd", ""):
        assert kept_rehearsals.find(name) is None
    shutil.rmtree(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "trick", ["os.mkfifo(path)", "os.symlink('/dev/zero', path)", "os.truncate(os.open(path, 66), 1 << 37)"]
)
def test_a_program_that_spoils_its_answer_ends_in_a_sentence(folder: Path, trick: str) -> None:
    text = "import glob, os, tempfile\nfor name in ('answer.json', 'progress'):\n"
    text += (
        "    path = os.path.dirname(tempfile.gettempdir()) + '/' + name\n    os.path.exists(path) and os.unlink(path)\n"
    )
    Path("train.py").write_text(f"{text}    {trick}\nos._exit(0)\n")
    program = Program(command="env/bin/python train.py", folder=str(folder))
    with pytest.raises(CannotTellError, match="the program ended without a result"):
        rehearse_job(Job(program=program), may_run=True, progress=print)
