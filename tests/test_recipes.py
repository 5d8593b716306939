"""The container file and the conda recipe: they name what pyproject.toml names."""

import fnmatch
import re
from pathlib import Path

import msgspec
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PYPROJECT = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes())
PROJECT = PYPROJECT["project"]
RECIPE = yaml.safe_load((ROOT / "recipes/conda/recipe.yaml").read_text())
CONDA_NAMES = {"prometheus-client": "prometheus_client", "torch": "pytorch"}
"""Packages that conda-forge calls otherwise, besides capitals."""


def conda(requirements: list[str]) -> set[str]:
    """Return requirements as conda writes them."""
    found = set()
    for requirement in map(Requirement, requirements):
        bounds = ",".join(sorted(map(str, requirement.specifier), reverse=True))
        found.add(f"{CONDA_NAMES.get(requirement.name, requirement.name.lower())} {bounds}")
    return found


def test_the_recipe_has_version_and_requirements_of_the_package() -> None:
    assert RECIPE["package"]["name"] == PROJECT["name"]
    assert RECIPE["context"]["version"] == PROJECT["version"]
    assert f">={RECIPE['context']['python_min']}" == PROJECT["requires-python"]
    needed = set(RECIPE["requirements"]["run"]) - {"python >=${{ python_min }}", "__linux"}
    assert needed == conda(PROJECT["dependencies"])
    assert set(RECIPE["requirements"]["run_constraints"]) == conda(PROJECT["optional-dependencies"]["torch"])
    (setuptools,) = PYPROJECT["build-system"]["requires"]
    assert conda([setuptools]) < set(RECIPE["requirements"]["host"])
    assert RECIPE["build"]["python"]["entry_points"] == [f"vramtop = {PROJECT['scripts']['vramtop']}"]


def test_the_image_gets_all_that_the_package_is_built_from_and_nothing_else() -> None:
    lines = (ROOT / "recipes/Containerfile.dockerignore").read_text().splitlines()
    sent = {line[1:] for line in lines if line.startswith("!")}
    rooms = {
        PYPROJECT["tool"]["setuptools"]["package-dir"][f"vramtop.{room}"] for room in ("estimator", "monitor", "tui")
    }
    data = {
        name.partition("/")[0] for names in PYPROJECT["tool"]["setuptools"]["data-files"].values() for name in names
    }
    assert sent == {*rooms, *data, "pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]}
    assert "*" in lines
    assert any(fnmatch.fnmatch("estimator/__pycache__", line) for line in lines)


def test_the_image_runs_without_root_and_asks_for_nvml_alone() -> None:
    text = (ROOT / "recipes/Containerfile").read_text()
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001"]
    assert "NVIDIA_DRIVER_CAPABILITIES=utility" in text
    assert "NVIDIA_VISIBLE_DEVICES=all" in text
    assert 'ENTRYPOINT ["vramtop"]' in text
