"""Real rehearsals that are killed, fail or run in containers: nothing is left of them, nothing real has changed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from waiting import until

from vramtop.estimator.isolation import landlock

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
REHEARSE = [sys.executable, "-m", "vramtop.tui.cli", "rehearse"]
DENIED = [sys.executable, str(Path(__file__).parents[2] / "deny_namespaces.py")]
STAYS = """
import os, pathlib, signal, subprocess, sys, time
marker = sys.argv[1]
subprocess.Popen(["setsid", "sh", "-c", f"while :; do sleep 0.1; done; : {marker}"])
ignoring = "import signal, time; [signal.signal(each, signal.SIG_IGN) for each in (1, 2, 3, 15)]; time.sleep(600)"
subprocess.Popen([sys.executable, "-c", ignoring, marker])
print("started", flush=True)
time.sleep(600)
"""
TRAINS = """
import os, pathlib, torch
os.makedirs("out/checkpoints", exist_ok=True)
net = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(3):
    net(torch.randn(8, 64).cuda()).sum().backward()
    torch.save(net.state_dict(), f"out/checkpoints/{step}.part")
    os.replace(f"out/checkpoints/{step}.part", f"out/checkpoints/{step}.pt")
    assert sorted(each.name for each in pathlib.Path("out/checkpoints").iterdir()) == [
        f"{each}.pt" for each in range(step + 1)]
    assert torch.load(f"out/checkpoints/{step}.pt", map_location="cuda")["weight"].shape == (64, 64)
    open("log.txt", "a").write("a line")
    optimizer.step()
"""


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name in ("tmp", "run"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "run")
    return {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp")}


def running(marker: str) -> list[str]:
    """Return the command lines of processes that have a word; not those of vramtop and its keeper."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (folder / "cmdline").read_text(errors="replace")
            if marker in line and "tui.cli" not in line and "isolation" not in line:
                found.append(line)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGQUIT", "SIGINT", "SIGKILL"])
def test_nothing_is_left_of_a_rehearsal_that_is_ended(name: str, environ: dict[str, str]) -> None:
    Path("train.py").write_text(STAYS)
    marker = f"vramtop-test-{time.monotonic_ns()}"
    command = [*REHEARSE, "--", sys.executable, "train.py", marker]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ) as process:
        until(lambda: len(running(marker)) >= 3)
        number = getattr(signal, name)
        process.send_signal(number)
        said, complained = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert (said, complained) == (b"", b"")
    until(lambda: not running(marker) and not list(Path(environ["TMPDIR"]).iterdir()))


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--no-landlock"]])
def test_a_program_is_rehearsed_in_a_container_and_changes_nothing(words: list[str], environ: dict[str, str]) -> None:
    if not words and not landlock.version():
        pytest.skip("this kernel has no Landlock")
    Path("train.py").write_text(TRAINS)
    Path("log.txt").write_text("an old log")
    command = [*DENIED, *words, *REHEARSE, "--json", "--", sys.executable, "train.py"]
    found = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert found.returncode == 0, found.stderr
    told = " ".join(json.loads(found.stdout)["assumptions"])
    assert "This kernel gave the program no private file system" in told
    assert ("Landlock protected the real files" in told) == (not words)
    assert {each.name: each.read_text() for each in Path.cwd().iterdir()} == {
        "train.py": TRAINS,
        "log.txt": "an old log",
    }
    assert not list(Path(environ["TMPDIR"]).iterdir())
