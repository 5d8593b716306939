"""Packages of an interpreter, read in a real process; torch is a fake module with the attributes that are read."""

import os
import sys
from pathlib import Path

import pytest

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.trace.installed_packages import installed_packages, torch_build

PYTHON = Path(sys.executable)


def stand_in(folder: Path, text: str) -> dict[str, str]:
    """Return an environment in which ``import torch`` runs this code."""
    (folder / "torch.py").write_text(text)
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_versions_and_modules_without_importing_any(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("raise SystemExit('imported')\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = installed_packages(
        PYTHON,
        distributions=["msgspec", "no-such-thing"],
        modules=["loud", "no_such.thing"],
        requirements_of=["pytest", "no-such-thing"],
        environ=environ,
    )
    assert list(found.versions) == ["msgspec"]
    assert found.modules == ("loud",)
    assert any(requirement.startswith("pluggy") for requirement in found.requirements)
    assert found.python == ".".join(map(str, sys.version_info[:3]))


def test_a_cuda_build_lists_its_architectures_without_a_visible_gpu(tmp_path: Path) -> None:
    environ = stand_in(
        tmp_path,
        "import os\n"
        "class version:\n    cuda, hip = '12.8', None\n"
        "class cuda:\n"
        "    @staticmethod\n    def get_arch_list():\n        return []\n"
        "class _C:\n"
        "    @staticmethod\n    def _cuda_getArchFlags():\n"
        "        assert os.environ['CUDA_VISIBLE_DEVICES'] == ''\n        return 'sm_80 sm_90 compute_90'\n"
        "__version__ = '2.13.0+cu128'\n",
    )
    found = torch_build(PYTHON, environ=environ)
    assert (found.version, found.cuda, found.hip) == ("2.13.0+cu128", "12.8", None)
    assert found.architectures == ("sm_80", "sm_90", "compute_90")


@pytest.mark.slow
def test_the_installed_torch_answers() -> None:
    found = torch_build(PYTHON)
    assert found.problem is None
    assert found.version is not None
    assert (found.cuda is None) == (found.architectures is None)


@pytest.mark.parametrize(
    "text", ["import no_such_module\n", "raise OSError('libcudart.so.12: cannot open')\n", "raise ValueError('odd')\n"]
)
def test_a_torch_that_cannot_be_imported_has_a_problem(tmp_path: Path, text: str) -> None:
    found = torch_build(PYTHON, environ=stand_in(tmp_path, text))
    assert found.version is None
    assert (found.problem or "").startswith(("ModuleNotFoundError", "OSError: libcudart.so.12", "ValueError: odd"))


def test_an_interpreter_that_hangs_times_out(tmp_path: Path) -> None:
    with pytest.raises(CannotTellError, match="no answer within"):
        torch_build(PYTHON, environ=stand_in(tmp_path, "import time\ntime.sleep(60)\n"), timeout=0.2)
    with pytest.raises(CannotTellError, match="cannot be started"):
        installed_packages(tmp_path / "none", distributions=[])
