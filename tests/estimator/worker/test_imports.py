"""Changes of other libraries' modules once they are imported."""

import importlib
import sys
from pathlib import Path

import pytest

from vramtop.estimator.worker.rehearsal.imports import after_import


def test_a_module_whose_first_import_fails_is_changed_by_its_second(tmp_path: Path, monkeypatch) -> None:
    Path(tmp_path, "halting.py").write_text("import other_part\nvalue = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    after_import("halting", lambda module: setattr(module, "value", 2))
    with pytest.raises(ImportError):
        importlib.import_module("halting")
    Path(tmp_path, "other_part.py").touch()
    importlib.invalidate_caches()
    assert importlib.import_module("halting").value == 2
    monkeypatch.delitem(sys.modules, "halting")
    assert importlib.import_module("halting").value == 1
