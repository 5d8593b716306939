"""Files of settings, a file system that is seen below another root, and evidence."""

import os
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.readers.config_file import read_config_file
from vramtop.estimator.readers.source.data_files import read_table
from vramtop.estimator.readers.source.evidence import Finding
from vramtop.estimator.readers.source.filesystem_view import FilesystemView


def bomb(levels: int) -> str:
    """Return short YAML that doubles with every line as its aliases are expanded."""
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}" for n in range(1, levels)]
    return "\n".join(lines)


def test_aliases_are_followed(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: &a {b: 1}\nc: {<<: *a, d: *a}\n")
    assert read_table(tmp_path / "x.yaml") == {"a": {"b": 1}, "c": {"b": 1, "d": {"b": 1}}}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (bomb(40), "not YAML: more than 100,000 values"),
        ("a: &a\n  b: *a\n", "not YAML: a value contains itself"),
        ("a: &a [1, *a]\n", "not YAML: a value contains itself"),
        ("a: [b\n", "not YAML in line 2: while parsing a flow sequence"),
        ("a: 1\n---\nb: 2\n", "not YAML in line 2: expected a single document"),
        ("a: !!python/object/apply:os.getcwd []\n", "not YAML in line 1: could not determine a constructor"),
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("- a\n- b\n", "a list; expected a table of settings"),
        ("just words\n", "plain text; expected a table of settings"),
    ],
)
def test_a_file_without_settings_is_reported_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        read_table(tmp_path / "x.yaml")
    assert caught.value.message.startswith(f"{tmp_path / 'x.yaml'}: {sentence}")
    with pytest.raises(InputError, match="the launch line after --"):
        read_config_file(tmp_path / "x.yaml", environ={})


@pytest.mark.parametrize("text", ["[" * 100_000, "{" * 100_000, "a: " + "[" * 5000, "[" * 5000 + "]" * 5000])
@pytest.mark.parametrize("name", ["x.yaml", "x.json", "x.toml"])
def test_deep_nesting_is_reported_in_one_sentence(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=name):
        read_table(tmp_path / name)


def test_values_that_name_code_stay_text(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("model:\n  _component_: os.getcwd\nloss:\n  _target_: os.getcwd\n")
    assert read_table(tmp_path / "x.yaml") == {"model": {"_component_": "os.getcwd"}, "loss": {"_target_": "os.getcwd"}}


def test_a_byte_order_mark_is_removed_from_the_text(tmp_path: Path) -> None:
    for name, text in (("x.json", '{"a": 1}'), ("x.yaml", "a: 1"), ("x.toml", "a = 1")):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert read_table(tmp_path / name) == {"a": 1}


def test_a_device_or_a_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (Path("/dev/zero"), tmp_path / "x.yaml", tmp_path / "pipe.yaml"):
        with pytest.raises(InputError, match="cannot be read as text"):
            read_table(path)


TUNE = "model: {_component_: torchtune.models.llama3_1.lora_llama3_1_8b, lora_rank: 8, lora_attn_modules: VALUE}\n"


@pytest.mark.parametrize("value", ["true", "7", "{a: b}", "q_proj", "[]"])
def test_a_value_of_another_kind_is_asked_for(tmp_path: Path, value: str) -> None:
    (tmp_path / "x.yaml").write_text(TUNE.replace("VALUE", value))
    assert "lora.targets" in read_config_file(tmp_path / "x.yaml", environ={}).missing


def test_an_impossible_path_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text('base_model: "a\\0b"\ndeepspeed: "c\\0d.json"\n')
    reading = read_config_file(tmp_path / "x.yaml", environ={})
    assert any("cd.json: no such file" in warning for warning in reading.warnings)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return another root folder, with links as they are made inside it."""
    root = tmp_path / "root"
    (root / "data" / "llama").mkdir(parents=True)
    (root / "data" / "llama" / "config.json").write_text("{}")
    (root / "jobs").mkdir()
    (root / "jobs" / "model").symlink_to("/data/llama")
    (root / "jobs" / "again").symlink_to("model/../llama")
    (root / "jobs" / "out").symlink_to("../../../../../data")
    (root / "jobs" / "loop").symlink_to("loop")
    return root


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("model", "data/llama"),
        ("/jobs/model/config.json", "data/llama/config.json"),
        ("again/config.json", "data/llama/config.json"),
        ("out/llama", "data/llama"),
        ("nothing/here", "jobs/nothing/here"),
    ],
)
def test_links_below_another_root_lead_to_its_own_folders(root: Path, text: str, found: str) -> None:
    assert FilesystemView(cwd=root / "jobs", root=root).resolve(text) == root / found


def test_a_link_to_itself_is_not_followed_forever(root: Path) -> None:
    assert not os.access(FilesystemView(cwd=root / "jobs", root=root).resolve("loop/x"), os.F_OK)


def test_links_of_the_own_root_are_unchanged(root: Path) -> None:
    assert FilesystemView(cwd=root / "jobs").resolve("model") == root / "jobs" / "model"


def test_impossible_characters_of_a_path_are_replaced(tmp_path: Path) -> None:
    view = FilesystemView(cwd=tmp_path)
    assert view.resolve("a\0b") == tmp_path / "ab"
    assert view.resolve("\ud800") == tmp_path / "?"
    assert view.resolve("\udcff") == tmp_path / "\udcff"  # a file name that is not UTF-8, as os.fsdecode spells it


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (16, "16"),
        (["q_proj", "v_proj"], "q_proj, v_proj"),
        ({"model_type": "llama", "hidden_size": 64}, "config of a llama"),
        (
            [{"role": "reward", "id": "a/b", "dtype": "bf16"}, {"role": "reference"}],
            "reward model a/b, reference model",
        ),
    ],
)
def test_values_are_displayed_in_words(value: Any, text: str) -> None:
    assert Finding(key="model.id", value=value, origin="here", written=True).value_text == text
