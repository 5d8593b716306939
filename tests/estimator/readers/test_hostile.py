"""Any job file, configuration, script or launch line gives a job or an error of one sentence. Found by fuzzing."""

import itertools
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from vramtop.estimator.common.errors import InputError, VramtopError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.job.job_file.load_and_save import load_job
from vramtop.estimator.readers.config_file import read_config_file
from vramtop.estimator.readers.launch_line import read_launch
from vramtop.estimator.readers.script.script_settings import read_script
from vramtop.estimator.readers.source.data_files import read_table

some = settings(max_examples=30)
DEEP_SCRIPTS = ("x = " + "1+" * 50_000 + "1", "f(x" + ".a" * 50_000 + ")")
"""Nested more deeply than Python reads before 3.14."""
AXOLOTL = "base_model: gpt2\nmicro_batch_size: 1\nsequence_len: 8\n"
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.integers(-3, 70),
    st.text(max_size=6),
    st.sampled_from([2**31, 2**63, 10**30, 10**400, "9" * 5_000, "\ud800", "\0", "/dev/zero", "auto", "${a}"]),
)


def short(value: object) -> str:
    """Return a short name for a parameter, whose value may be very long."""
    return f"{value.bit_length()}-bits" if isinstance(value, int) else ascii(value)[:24]


VALUE = st.recursive(ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))


def sentence(act: Callable[[], object], otherwise: str = "x: ") -> str:
    """Return the error's message, or ``otherwise`` if there is no error."""
    try:
        act()
    except VramtopError as error:
        return error.message
    return otherwise


def merged(levels: int) -> str:
    """Return YAML in which every line merges the previous one twice."""
    lines = ["b0: &b0 {x: 1}"]
    lines += [f"b{n}:  &b{n}\n  <<: [*b{n - 1}, *b{n - 1}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a {" + ", ".join(f"k{n}: 1" for n in range(900)) + "}\nb:\n  <<: [" + "*a," * 900 + "]",
        "a: 1" + ":59" * 20_000,
        "a: 1" + ":59" * 1_000 + ".5",
        "a: !!int ''",
        "a: !!bool x",
        "a: !!timestamp x",
        "a: " + "9" * 5_000,
        "a:\n " + "- " * 2_000 + "1",
        "a: [" + "0," * 50_000 + "]",
        "? [a]\n: b",
        "a: \0",
    ],
    ids=short,
)
def test_invalid_yaml_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(InputError, match="not YAML"):
        read_table(tmp_path / "x.yaml")


def test_a_chain_of_merges_ends(tmp_path: Path) -> None:
    """PyYAML before 6.0.4 copies each key each time, 2**59 times here; later versions keep one of them."""
    (tmp_path / "x.yaml").write_text(merged(60))
    table: dict[str, object] = {}
    error = sentence(lambda: table.update(read_table(tmp_path / "x.yaml")))
    assert table == {f"b{n}": {"x": 1} for n in range(60)} or "after expanding merge keys" in error


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5_000,
        "x = " + "-" * 50_000 + "1",
        *(DEEP_SCRIPTS if (3, 11) <= sys.version_info < (3, 14) else ()),
        "\0",
        "#" * 300_000,
    ],
    ids=short,
)
def test_an_unreadable_script_is_reported_in_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.py").write_text(text)
    with pytest.raises(InputError, match=r"x\.py: (not readable Python|too large)"):
        read_script(tmp_path / "x.py", options={}, environ={})


@pytest.mark.skipif(sys.version_info < (3, 14), reason="older Pythons refuse them")
@pytest.mark.parametrize("text", DEEP_SCRIPTS, ids=short)
def test_a_deep_script_is_read_where_python_reads_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.py").write_text(text)
    read_script(tmp_path / "x.py", options={}, environ={})


def test_reading_a_script_writes_nothing_to_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("pattern = '\\d'\nx = 1if pattern else 2\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_script(tmp_path / "x.py", options={}, environ={})


def test_nested_lists_in_a_script_are_followed_to_a_limited_depth(tmp_path: Path) -> None:
    names = "abcdefgh"
    lines = ["a = [1]", *(f"{n} = [{f'{before}, ' * 300}]" for before, n in itertools.pairwise(names))]
    (tmp_path / "x.py").write_text("\n".join([*lines, "TrainingArguments(optim=h, bf16=True)"]))
    read_script(tmp_path / "x.py", options={}, environ={})  # 300 to the power of 7 values


@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads"])
@pytest.mark.parametrize("value", [10**12, 10**30, 10**5_000, -1, 1e300, [1], "x"], ids=short)
def test_impossible_model_shapes_are_refused(field: str, value: object) -> None:
    for family in ("llama", "mixtral", "qwen3_moe", "gpt2"):
        config = {**LLAMA, "model_type": family, field: value}
        with pytest.raises(InputError, match=field):
            estimate(Job(model=ModelSpec(config=config)), gpu=None)


@pytest.mark.parametrize("layers", [2_001, 2**31 - 1], ids=short)
def test_an_impossible_number_of_layers_is_not_iterated_over(layers: int) -> None:
    config = {**LLAMA, "model_type": "mixtral", "num_hidden_layers": layers}
    with pytest.raises(InputError, match="layers are more than any model has"):
        estimate(Job(model=ModelSpec(config=config)), gpu=None)


@pytest.mark.parametrize("count", [10**30, 2**63, 2**31], ids=short)
def test_impossible_counts_of_a_job_are_refused(count: int) -> None:
    for key in ("micro_batch", "sequence_length", "gradient_accumulation"):
        with pytest.raises(InputError, match=rf"training\.{key}"):
            job_from_mapping({"training": {key: count}}, where="x")


def test_versions_of_endless_digits_are_refused() -> None:
    for table in ({"torch": "9" * 5_000}, {"cublas_workspace": f":{'9' * 5_000}:8"}):
        with pytest.raises(InputError, match="software"):
            job_from_mapping({"software": table}, where="x")


def test_a_lone_surrogate_is_reported_in_one_sentence() -> None:
    with pytest.raises(InputError, match="x: "):
        job_from_mapping({"model": {"task": "\ud800"}}, where="x")


@pytest.mark.parametrize(
    "table",
    [
        {"running_model_config": "lib"},
        {"zero_optimization": {"stage": 3}, "num_layers": {}, "gpu_memory_utilization": [1]},
    ],
    ids=short,
)
def test_values_of_another_type_cause_no_crash(tmp_path: Path, table: dict[str, object]) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"per_device_train_batch_size": 1, **table}))
    read_config_file(tmp_path / "x.json", environ={})


@pytest.mark.parametrize("number", ["²", "9" * 5_000, "-1", ""], ids=short)
def test_impossible_numbers_of_ranks_are_ignored(number: str) -> None:
    environ = {"NPROC_PER_NODE": number, "NNODES": number, "WORLD_SIZE": number, "RANK": number}
    for line in (
        ["torchrun", f"--nnodes={number}", "--nproc-per-node=2", "x.py"],
        ["llamafactory-cli", "train", "--stage", "sft"],
        ["accelerate", "launch", "--use_fsdp", "--fsdp_sharding_strategy", number, "x.py"],
    ):
        reading = read_launch(line, environ=environ, cwd=Path("/nonexistent"))
        assert reading.value("parallel.data_shard") is None
        assert reading.value("parallel.data_replicate") is None


@pytest.mark.slow
@some
@given(
    st.dictionaries(
        st.sampled_from(["model", "training", "lora", "parallel", "software", "run", "target", "x"]),
        st.dictionaries(
            st.sampled_from(["id", "config", "micro_batch", "rank", "targets", "strategy", "tensor", "torch", "gpu"]),
            VALUE,
        )
        | VALUE,
    )
)
def test_any_tables_are_a_job_or_an_input_error(tables: dict[str, Any]) -> None:
    assert sentence(lambda: job_from_mapping(tables, where="x")).startswith("x: ")


@some
@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda data: data.decode("latin-1")))
@pytest.mark.parametrize("name", ["x.toml", "x.yaml", "x.json"])
def test_any_text_is_read_or_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(text.encode("utf-8", errors="replace"))
    for read in (load_job, read_config_file):
        assert name in sentence(lambda read=read: read(tmp_path / name), otherwise=name)


@example({"layer_types": ["\ud800"]})
@some
@given(st.dictionaries(st.sampled_from([*LLAMA, "head_dim", "num_experts", "layer_types", "sliding_window"]), VALUE))
def test_any_config_is_estimated_or_refused(fields: dict[str, Any]) -> None:
    try:
        budget = estimate(Job(model=ModelSpec(config={**LLAMA, **fields})), gpu=None)
    except VramtopError:
        return
    assert budget.peak.device_bytes > 0


KEYS = [
    *("micro_batch_size", "sequence_len", "adapter", "lora_r", "deepspeed", "fsdp", "fsdp_config", "optimizer"),
    "bf16",
]


@some
@given(st.dictionaries(st.sampled_from(KEYS), VALUE))
def test_any_value_in_a_configuration_is_read(tmp_path: Path, values: dict[str, Any]) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"base_model": "gpt2", "sequence_len": 8, **values}))
    try:
        read_config_file(tmp_path / "x.json", environ={}).job({})
    except VramtopError:
        return


WORDS = [
    *("torchrun", "accelerate", "launch", "deepspeed", "python", "-m", "x.py", "--config", "/dev/zero", "--", "=", "-"),
]


@some
@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=5) | st.integers().map(str), max_size=10))
def test_any_launch_line_is_read(words: list[str]) -> None:
    try:
        read_launch(words, environ={}, cwd=Path("/nonexistent")).job({})
    except VramtopError:
        return


PIECES = [
    *("TrainingArguments(", "bf16=", "x", "=", "[", "]", "(", ")", ",", "\n", "1", "'a'", "**", "def f(a=1):", "if x:"),
]


@some
@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join))
def test_any_script_is_read_or_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.py").write_text(text)
    assert "x.py" in sentence(lambda: read_script(tmp_path / "x.py", options={}, environ={}), otherwise="x.py")
