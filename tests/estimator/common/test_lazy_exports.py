import subprocess
import sys
from types import ModuleType

import pytest

from vramtop.estimator.common.lazy_exports import lazy_exports


@pytest.fixture
def package(tmp_path, monkeypatch) -> ModuleType:
    folder = tmp_path / "sample_room"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from vramtop.estimator.common.lazy_exports import lazy_exports\n"
        "__getattr__, __all__ = lazy_exports(__name__, {'inner': 'Thing'})\n"
    )
    (folder / "inner.py").write_text("class Thing:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("sample_room")
    for name in [name for name in sys.modules if name.startswith("sample_room")]:
        del sys.modules[name]


def test_a_name_is_loaded_from_its_module_on_first_use(package: ModuleType) -> None:
    assert "sample_room.inner" not in sys.modules
    from sample_room import Thing

    assert Thing is sys.modules["sample_room.inner"].Thing
    assert vars(package)["Thing"] is Thing
    assert package.__all__ == ["Thing"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    get, _ = lazy_exports("sample", {})
    with pytest.raises(AttributeError, match="module 'sample' has no attribute 'nothing'"):
        get("nothing")


def test_the_public_packages_list_their_names() -> None:
    program = "import vramtop.estimator as e; print(sorted(dir(e)) == sorted(e.__all__), e.Job.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "Job"]
