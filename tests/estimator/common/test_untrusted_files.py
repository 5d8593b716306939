"""Untrusted files: regular files only, up to a size, a nesting and a count; what cannot be read is one error."""

import os
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.limits import LimitError, decode_json
from vramtop.estimator.common.paths import expand_user, is_file, is_folder
from vramtop.estimator.common.untrusted_files import (
    TooLargeError,
    check_nesting,
    open_file,
    parse_toml,
    read_file,
    read_start,
)
from vramtop.estimator.job.job import ModelSpec
from vramtop.estimator.job.job_file.load_and_save import load_job
from vramtop.estimator.model.find_config import hub_cache, resolve_model
from vramtop.estimator.readers.launch_line import read_launch


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop", "link to a device"])
def test_pipes_and_devices_are_not_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    match kind:
        case "pipe":
            os.mkfifo(path)  # without a writer an ordinary open would block forever
        case "device":
            path = Path("/dev/zero")
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "link to a device":
            path.symlink_to("/dev/zero")
    for read in (open_file, read_file, lambda path: read_start(path, 10)):
        with pytest.raises(OSError, match=r"pipe or a device|Is a directory|symbolic links"):
            read(path)


def test_a_file_is_read_up_to_its_maximum_size(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    assert read_file(path, 10) == b"0123456789"
    assert read_start(path, 4) == b"0123"
    with pytest.raises(TooLargeError):
        read_file(path, 9)


def test_files_of_the_kernel_are_empty() -> None:
    assert read_file(Path("/proc/self/status")) == b""  # it has no size; others of its kind never end


def test_deep_large_and_cyclic_data_is_refused() -> None:
    deep: list[object] = []
    for _ in range(63):
        deep = [deep]
    check_nesting(deep)
    itself: list[object] = [1]
    itself.append(itself)
    doubled: list[object] = [1]
    for _ in range(40):
        doubled = [doubled, doubled]
    for data, words in ((deep_of(200), "deep"), (itself, "itself"), (doubled, "values"), ([0] * 200_000, "values")):
        with pytest.raises(ValueError, match=words):
            check_nesting(data)


def deep_of(levels: int) -> list[object]:
    data: list[object] = [1]
    for _ in range(levels):
        data = [data]
    return data


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a" + ".a" * 5_000 + " = 1",
        "a = " + "9" * 5_000,
        "a = 1" + "_1" * 5_000,
        "a = [" + "0," * 200_000 + "]",
        "a = 2001-99-99",
    ],
    ids=range(6),
)
def test_invalid_toml_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_toml(text)


def test_an_error_cuts_a_long_value() -> None:
    message = InputError(f"begin {'x' * 1_000_000} end").message
    assert message.startswith("begin")
    assert message.endswith("end")
    assert len(message) < 2_000


DEEP = "[" * 200_000


@pytest.mark.parametrize(
    "text",
    ["", "{", "NaN", DEEP, '{"a":' * 200_000, b"\xff", b'"\xff"', '{"b": ' + DEEP],
    ids=lambda text: ascii(text[:8]),
)
@pytest.mark.parametrize("kind", [Any, dict[str, int]])
def test_what_cannot_be_read_is_one_error(text: str | bytes, kind: Any) -> None:
    with pytest.raises(LimitError):
        decode_json(text, kind)


@pytest.mark.parametrize("deep", [DEEP, "[" * 900 + "]" * 900], ids=["open", "closed"])
@pytest.mark.parametrize("flag", ["--report_to", "--liger_kernel_config"])
def test_flags_that_are_nested_too_deeply_count_as_not_given(tmp_path: Path, flag: str, deep: str) -> None:
    line = ["trl", "sft", "--model_name_or_path", "gpt2", "--use_liger_kernel", flag, deep]
    reading = read_launch(line, environ={}, cwd=tmp_path)
    assert reading.value("run.report_to") is None
    assert reading.value("training.fused_kernels") == ["norm", "mlp", "rope"]


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
