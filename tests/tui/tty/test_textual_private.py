"""Private names of Textual that vramtop uses: each still exists, and the dashboard works without them."""

import inspect
import re
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import textual
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

CLASSES = {
    "_compositor.ChopsUpdate": ["chops", "spans", "chop_ends"],
    "_compositor.LayoutUpdate": ["strips", "region"],
    "_compositor.CompositorUpdate": None,
    "_styles_cache.StylesCache": [],
}
"""With the arguments of their constructors, which are their attributes too; None: any."""
METHODS = {
    (App, "_display"): ["screen", "renderable"],
    (App, "_handle_exception"): ["error"],
    (App, "_fatal_error"): [],
    (LinuxDriver, "_get_terminal_size"): [],
    (LinuxDriver, "_request_terminal_sync_mode_support"): [],
    (LinuxDriver, "_query_in_band_window_resize"): [],
}
RENAMED = (
    *("_compositor", "ChopsUpdate", "LayoutUpdate", "_styles_cache", "get_inner_outer", "_display"),
    *("_handle_exception", "_fatal_error", "_get_terminal_size", "_request_terminal_sync_mode_support"),
    *("_query_in_band_window_resize", "_file", "_driver", "linux_driver"),
)


def test_each_private_name_exists() -> None:
    for path, arguments in CLASSES.items():
        module, name = path.split(".")
        found = inspect.signature(getattr(import_module(f"textual.{module}"), name))
        assert arguments is None or list(found.parameters) == arguments
    for (owner, name), arguments in METHODS.items():
        assert list(inspect.signature(getattr(owner, name)).parameters) == ["self", *arguments]
    assert "self._file" in inspect.getsource(LinuxDriver)


@pytest.fixture
def other_textual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that renames these names in a copy of Textual for programs started later."""

    def make(*names: str) -> None:
        copy = tmp_path / "textual"
        shutil.copytree(Path(textual.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        pattern = re.compile(rf"\b({'|'.join(names)})\b")
        for path in copy.rglob("*.py"):
            path.write_text(pattern.sub(r"\1_renamed", path.read_text()))
            if path.stem in names:
                path.rename(path.with_stem(f"{path.stem}_renamed"))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    return make


def use_the_dashboard(on_terminal, copy: Path) -> None:
    """Check that the dashboard draws, reacts to keys and a resize, and exits normally, with this copy of Textual."""
    shown = on_terminal(program=(sys.executable, "-c", "import textual; print(textual.__file__)"))
    shown.wait_for(str(copy))
    dashboard = on_terminal("--demo", size=(100, 30))
    dashboard.wait_for("Quit")
    dashboard.wait_for("gpubox-3")
    before = len(dashboard.written)
    dashboard.type("?")
    dashboard.wait_for("shows the full help", since=before)
    before = len(dashboard.written)
    dashboard.type("?")
    dashboard.wait_for("Keys", since=before)
    dashboard.type("?")  # closes the help; an Escape before other keys would be taken for Alt
    before = len(dashboard.written)
    dashboard.resize(120, 40)
    dashboard.wait_for("gpubox-3", since=before)
    dashboard.type("q")
    assert dashboard.end() == 0
    assert dashboard.echoes
    assert b"Traceback" not in dashboard.written


def test_the_dashboard_works_without_any_of_the_private_names(on_terminal, other_textual, tmp_path) -> None:
    other_textual(*RENAMED)
    use_the_dashboard(on_terminal, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", RENAMED)
def test_the_dashboard_works_without_one_of_the_private_names(on_terminal, other_textual, tmp_path, name: str) -> None:
    other_textual(name)
    use_the_dashboard(on_terminal, tmp_path)
