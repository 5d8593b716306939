import sys
from pathlib import Path

import pytest

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.library_versions import find_interpreters
from vramtop.estimator.trace.interpreters import choose_interpreter, probe_interpreter


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python without site-packages, and so without torch."""
    program = tmp_path / "bare" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    program.chmod(0o755)
    return program


def environment(folder: Path) -> Path:
    program = folder / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.symlink_to(sys.executable)
    return program


def test_active_environments_come_before_this_python(tmp_path: Path) -> None:
    venv, conda = environment(tmp_path / "venv"), environment(tmp_path / "conda")
    environ = {"CONDA_PREFIX": str(tmp_path / "conda"), "VIRTUAL_ENV": str(tmp_path / "venv")}

    assert find_interpreters(None, environ) == [venv, conda, Path(sys.executable)]


def test_environments_that_are_gone_are_left_out(tmp_path: Path) -> None:
    assert find_interpreters(None, {"VIRTUAL_ENV": str(tmp_path / "gone")}) == [Path(sys.executable)]


def test_named_python_is_the_only_one(tmp_path: Path) -> None:
    venv = environment(tmp_path / "venv")
    environ = {"VIRTUAL_ENV": str(tmp_path / "other")}

    assert find_interpreters(str(venv), environ) == [venv]
    assert find_interpreters(str(tmp_path / "venv"), environ) == [venv]


def test_named_python_that_is_missing_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such program"):
        find_interpreters(str(tmp_path / "python9"), {})


def test_a_probe_reads_versions_without_importing() -> None:
    found = probe_interpreter(Path(sys.executable))

    assert found.torch.startswith("2.")
    assert int(found.transformers.partition(".")[0]) >= 4


def test_python_without_torch_is_skipped(bare_python: Path) -> None:
    environ = {"VIRTUAL_ENV": str(bare_python.parent.parent)}

    assert probe_interpreter(bare_python) is None
    assert find_interpreters(None, environ)[0] == bare_python
    assert choose_interpreter(None, environ).path == Path(sys.executable)


def test_named_python_without_torch_is_not_replaced(bare_python: Path) -> None:
    with pytest.raises(CannotTellError, match=r"no Python with torch.*--python PATH"):
        choose_interpreter(str(bare_python), {})


def test_program_that_is_no_python_has_no_libraries(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)

    assert probe_interpreter(program) is None
