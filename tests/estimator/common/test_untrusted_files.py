"""Untrusted files: regular files only, up to a maximum size, nesting and number of values."""

import os
from pathlib import Path

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.untrusted_files import (
    TooLargeError,
    check_nesting,
    open_file,
    parse_toml,
    read_file,
    read_start,
)


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
