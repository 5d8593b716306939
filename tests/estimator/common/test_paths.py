import os
from pathlib import Path

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.paths import expand_user, is_file, is_folder
from vramtop.estimator.job.job import ModelSpec
from vramtop.estimator.job.job_file.load_and_save import load_job
from vramtop.estimator.model.find_config import hub_cache, resolve_model

LONG = "x" * 5_000


def test_an_impossible_path_is_not_a_file() -> None:
    for text in (LONG, "a\0b"):
        assert not is_file(Path(text))
        assert not is_folder(Path(text))


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**30)  # as in a container that runs under a number of its own
    assert expand_user("~/models") == Path("~/models")
    assert hub_cache({}) == Path("~/.cache/huggingface/hub")


def test_a_name_too_long_for_a_path_is_an_input_error(tmp_path: Path) -> None:
    for name in (LONG, "x:y" * 2_000):
        with pytest.raises(InputError, match="no model"):
            resolve_model(ModelSpec(id=name), environ={})
    (tmp_path / "job.toml").write_text(f'[model]\nid = "{LONG}"\n')
    assert load_job(tmp_path / "job.toml").model.id == LONG
    with pytest.raises(InputError, match=r"null (byte|character)"):
        load_job(Path("a\0b"))
