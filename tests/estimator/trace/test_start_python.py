"""The environment and the folder of the interpreters that vramtop starts."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.common.library_versions import find_interpreters
from vramtop.estimator.common.paths import JOB_FOLDERS, note_job_folder
from vramtop.estimator.trace.interpreters import probe_interpreter
from vramtop.estimator.trace.start_python import left_out_folders, safe_environment
from vramtop.estimator.trace.worker_process import Worker

PYTHON = Path(sys.executable)
BASE_PYTHON = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
"""Outside of a virtual environment, so that it has user packages."""
STRANGER = 54321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


def python_path(environ: dict[str, str]) -> list[str]:
    return [each for each in safe_environment(environ, PYTHON).get("PYTHONPATH", "").split(":") if each]


def folder_of(owner: int, folder: Path) -> Path:
    folder.mkdir()
    os.chown(folder, owner, owner)
    return folder


def test_folders_of_the_users_own_stay_on_the_path(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    assert python_path({"PYTHONPATH": f"{tmp_path / 'packages'}:/usr/lib"}) == [str(tmp_path / "packages"), "/usr/lib"]


def test_the_current_folder_and_relative_ones_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "here")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for path in ("", ".", ":", "..", "here", f"{tmp_path}/here", f"{tmp_path}/here/../here", f"{tmp_path}/link"):
        assert python_path({"PYTHONPATH": path}) == [], path


def test_a_removed_current_folder_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert python_path({"PYTHONPATH": f".:{tmp_path}"}) == [str(tmp_path)]
    assert probe_interpreter(PYTHON) is not None


def test_the_folder_of_a_job_is_left_out(tmp_path: Path) -> None:
    note_job_folder(tmp_path)
    try:
        assert python_path({"PYTHONPATH": str(tmp_path)}) == []
    finally:
        JOB_FOLDERS.discard(os.path.realpath(tmp_path))


def test_folders_that_anyone_may_write_to_are_left_out_and_named(tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    environ = {"PYTHONPATH": f"{open_folder}:/nowhere"}
    assert python_path(environ) == []
    assert left_out_folders(environ, PYTHON) == [f"{open_folder} (anyone may write to it)"]


@needs_root
def test_folders_that_a_group_of_others_may_write_to_are_left_out(tmp_path: Path) -> None:
    for place in (tmp_path / "packages", tmp_path / "above" / "packages"):
        place.mkdir(parents=True)
        (place / "sitecustomize.py").touch()
        shared = place if place.parent == tmp_path else place.parent
        os.chown(shared, 0, 65534)
        shared.chmod(0o2775)
        assert python_path({"PYTHONPATH": str(place)}) == []
        shared.chmod(0o2755)
        assert python_path({"PYTHONPATH": str(place)}) == [str(place)]
        (place / "sitecustomize.py").chmod(0o666)
        assert python_path({"PYTHONPATH": str(place)}) == []


@needs_root
def test_a_strangers_folder_is_left_out_unless_the_interpreter_is_theirs_too(tmp_path: Path) -> None:
    theirs = folder_of(STRANGER, tmp_path / "theirs")
    environ = {"PYTHONPATH": str(theirs)}
    assert python_path(environ) == []
    assert left_out_folders(environ, PYTHON) == [f"{theirs} (it belongs to another user)"]
    assert safe_environment(environ, theirs / "python")["PYTHONPATH"] == str(theirs)  # as with a cluster's modules


@pytest.mark.parametrize("name", ["PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX"])
def test_other_variables_lead_to_no_such_folder_either(name, in_folder) -> None:
    for value in (".", "packages", str(in_folder)):
        assert name not in safe_environment({name: value}, PYTHON)
    assert safe_environment({name: "/usr"}, PYTHON)[name] == "/usr"


def user_packages(home: Path) -> Path:
    """Make a folder of user packages in which Python runs code when it starts."""
    packages = home / ".local" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "evil.pth").write_text(f"import os; open({str(home / 'ran')!r}, 'w').close()\n")
    return packages


def test_user_packages_stay_unless_another_user_may_write_there(tmp_path: Path) -> None:
    homes = {name: tmp_path / name for name in ("own", "foreign", "open", "open below")}
    packages = {name: user_packages(home) for name, home in homes.items()}
    if os.geteuid() == 0:
        os.chown(homes["foreign"] / ".local", STRANGER, STRANGER)
    else:
        (homes["foreign"] / ".local").chmod(0o777)
    (homes["open"] / ".local").chmod(0o777)
    packages["open below"].chmod(0o777)
    for home in homes.values():
        with Worker(BASE_PYTHON, environ={"HOME": str(home)}) as worker:
            worker.request({"op": "packages"}, 30)
    assert [name for name, home in homes.items() if (home / "ran").exists()] == ["own"]


def test_an_interpreter_works_in_a_folder_of_roots(in_folder: Path) -> None:
    with Worker(PYTHON) as worker:
        worker.request({"op": "packages"}, 30)
        assert Path(f"/proc/{worker.pid}/cwd").readlink() == Path("/")
        environ = Path(f"/proc/{worker.pid}/environ").read_bytes().split(b"\0")
    assert b"PYTHONSAFEPATH=1" in environ


def test_an_environment_may_be_named_relative_to_the_current_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(PYTHON.parents[2])
    name = PYTHON.parents[1].name
    assert find_interpreters(None, {"VIRTUAL_ENV": name})[0] == PYTHON
    found = probe_interpreter(Path(name) / "bin" / PYTHON.name)
    assert found is not None


def test_planted_modules_do_not_hide_the_libraries(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f".:{in_folder}:")
    for name in ("json", "types", "torch", "importlib", "sitecustomize"):
        (in_folder / f"{name}.py").write_text(f"open({str(in_folder / 'ran')!r}, 'w').close()\n")
    assert probe_interpreter(PYTHON) is not None
    assert not (in_folder / "ran").exists()


def vramtop_marks(command: list[Any], folder: Path, names: tuple[str, ...], path: str | None) -> set[str]:
    """Return which of the modules planted in a folder run if a command is started there."""
    marks = folder / "marks"
    marks.mkdir(exist_ok=True)
    for mark in marks.iterdir():
        mark.unlink()
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(marks / name)!r}, 'w').close()\n")
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environ |= {} if path is None else {"PYTHONPATH": path}
    subprocess.run(command, cwd=folder, env=environ, capture_output=True, check=False, timeout=60)
    return {mark.name for mark in marks.iterdir()}


def test_vramtop_itself_imports_nothing_from_the_current_folder(tmp_path: Path) -> None:
    names = ("json", "argparse", "msgspec", "psutil", "pynvml", "torch", "subprocess", "datetime", "gzip", "yaml")
    module = [PYTHON, "-m", "vramtop.tui.cli", "--once", "--json"]
    assert vramtop_marks(module, tmp_path, names, None) == set()
    script = [PYTHON.parent / "vramtop", "--once", "--json"]
    assert vramtop_marks(script, tmp_path, names, None) == set()
    assert vramtop_marks(script, tmp_path, names, ".") == set()
