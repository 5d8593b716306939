"""The distribution: every folder with Python files is in pyproject's list and in the built wheel, with its data."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import msgspec
import pytest
from packaging.requirements import Requirement
from pinned_versions import pinned

ROOT = Path(__file__).parents[1]
PYPROJECT = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes())
ROOMS = ("estimator", "monitor", "tui")


def installed_name(path: Path) -> str:
    """Return what a file or folder of the checkout is called in the wheel; ``vramtop/`` is the package itself."""
    return f"vramtop/{path.relative_to(ROOT)}".replace("vramtop/vramtop", "vramtop")


def modules() -> set[str]:
    """Python files of the package and its three rooms, as they are called in the wheel."""
    return {installed_name(path) for room in ("vramtop", *ROOMS) for path in (ROOT / room).rglob("*.py")}


def data_files() -> set[str]:
    """Other files, likewise."""
    files = [path for room in ("vramtop", *ROOMS) for path in (ROOT / room).rglob("*") if path.is_file()]
    return {
        installed_name(path) for path in files if path.suffix not in (".py", ".pyc") and "__pycache__" not in path.parts
    }


def test_every_folder_with_python_files_is_listed() -> None:
    folders = {name.rpartition("/")[0].replace("/", ".") for name in modules()}
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == folders


def test_the_package_has_the_public_names_and_the_version() -> None:
    code = (
        "import sys, vramtop; heavy = {'textual', 'torch', 'msgspec'} & {*sys.modules}; "
        "print(vramtop.__version__, vramtop.Job.__module__, sorted(heavy)); vramtop.nothing"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split(maxsplit=2) == [PYPROJECT["project"]["version"], "vramtop.estimator.job.job", "[]\n"]
    assert "module 'vramtop' has no attribute 'nothing'" in done.stderr


def test_each_room_says_that_it_is_typed() -> None:
    assert all((ROOT / room / "py.typed").is_file() for room in ROOMS)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in a wheel built from this checkout, from a copy: what an earlier build left would get in."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for room in ("vramtop", *ROOMS):
        shutil.copytree(ROOT / room, source / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (built,) = folder.glob("vramtop_budget-*.whl")
    return set(zipfile.ZipFile(built).namelist())


@pytest.mark.slow
def test_the_wheel_has_every_module_and_every_data_file(wheel: set[str]) -> None:
    assert modules() | data_files() == {name for name in wheel if name.startswith("vramtop/")}
    assert "vramtop/monitor/sources/demo.jsonl.gz" in wheel
    assert "vramtop/estimator/model/models.toml" in wheel


@pytest.mark.slow
def test_the_wheel_has_completions_and_manual_page_where_shells_and_man_look(wheel: set[str]) -> None:
    installed = {name.partition(".data/data/")[2] for name in wheel if ".data/data/" in name}
    assert installed == {
        "share/bash-completion/completions/vramtop",
        "share/zsh/site-functions/_vramtop",
        "share/fish/vendor_completions.d/vramtop.fish",
        "share/man/man1/vramtop.1",
    }


@pytest.mark.slow
def test_the_wheel_puts_nothing_but_vramtop_into_site_packages(wheel: set[str]) -> None:
    assert {name.partition("/")[0].partition("-")[0] for name in wheel} == {"vramtop", "vramtop_budget"}


@pytest.mark.slow
def test_the_sdist_has_what_is_needed_to_test_and_document_it_and_no_leftovers(tmp_path: Path) -> None:
    """From a working tree with leftovers of builds and tests; the wheel is built from the sdist, as in a release."""
    left_out = (".venv", ".git", "build", "dist", "*.egg-info", ".*_cache", ".hypothesis", "node_modules")
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*left_out), symlinks=True)
    for junk in (".venv/bin/python", "build/typing/x.py", "tests/__pycache__/x.pyc", "docs/.DS_Store", "notes.txt"):
        (source / junk).parent.mkdir(parents=True, exist_ok=True)
        (source / junk).write_text("x")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (sdist,) = tmp_path.glob("vramtop_budget-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "LICENSE",
        "CHANGELOG.md",
        "Makefile",
        "mkdocs.yml",
        "docs/index.md",
        "requirements/tests.txt",
        "tests/conftest.py",
        ".ci/run",
    } < names
    assert {str(path.relative_to(source)) for path in (source / "tests").rglob("*.py")} < names
    assert not {name for name in names if re.search(r"__pycache__|\.pyc$|\.DS_Store|^\.venv|^build|notes\.txt", name)}
    (wheel,) = tmp_path.glob("vramtop_budget-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("vramtop/")}
    assert packed == modules() | data_files()


@pytest.mark.parametrize(("name", "extras"), [("run", ()), ("docs", ("docs",)), ("tests", ("torch", "dev"))])
def test_locked_versions_are_what_pyproject_asks_for(name: str, extras: tuple[str, ...]) -> None:
    """``make lock`` writes them. torch, from a file of its own, brings the libraries that its build needs."""
    project = PYPROJECT["project"]
    asked = [*PYPROJECT["build-system"]["requires"], *project["dependencies"]]
    asked += [line for extra in extras for line in project["optional-dependencies"][extra]]
    locked = pinned(f"{name}.txt")
    for requirement in map(Requirement, asked):
        of_package = [each for each in [*locked, *pinned("torch.txt")] if same_name(each) == same_name(requirement)]
        assert of_package, requirement
        for each in of_package:
            assert requirement.specifier.contains(str(each.specifier).removeprefix("==")), each
    assert not [each.name for each in locked if re.match(r"(torch|triton|cuda|nvidia-(?!ml-py))", each.name)]


def same_name(requirement: Requirement) -> str:
    """Return the name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", requirement.name).lower()


def test_the_readme_never_installs_somebody_elses_package() -> None:
    assert "pip install vramtop" not in (ROOT / "README.md").read_text()
    assert PYPROJECT["project"]["name"] == "vramtop-budget"
