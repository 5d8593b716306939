"""A wrong value of a job file is told in words, and never in those of the library that found it."""

import contextlib
from typing import Any

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job_file.changes import job_from_mapping


@pytest.mark.parametrize(
    ("table", "key", "value", "sentence"),
    [
        ("training", "micro_batch", "four", "training.micro_batch = 'four' is not a whole number"),
        ("training", "micro_batch", 1.5, "training.micro_batch = 1.5 is not a whole number"),
        ("training", "micro_batch", 0, "training.micro_batch = 0 is not a whole number of at least 1"),
        ("training", "trainable", 3, "training.trainable = 3 is not a list"),
        ("training", "fused_kernels", [7], "training.fused_kernels.1 = 7 is not a text"),
        ("training", "microbatch", 4, "unknown key 'training.microbatch'; did you mean 'training.micro_batch'?"),
        ("lora", "targets", "foo", "lora.targets = 'foo' is neither 'all-linear' nor a list"),
        ("lora", "dropout", "much", "lora.dropout = 'much' is not a number"),
        ("lora", "dropout", -1, "lora.dropout = -1 is not a number of at least 0"),
        ("run", "output_dir", 7, "run.output_dir = 7 is not a text"),
        ("software", "torch", "new", "software.torch = 'new' is not a version, such as 2.13.0"),
        (
            "run",
            "required_environment",
            ["A B"],
            "run.required_environment.1 = 'A B' is not the name of a variable, such as HF_TOKEN",
        ),
    ],
)
def test_what_is_wrong_and_what_is_right(table: str, key: str, value: Any, sentence: str) -> None:
    with pytest.raises(InputError) as error:
        job_from_mapping({"model": {"id": "gpt2"}, table: {key: value}}, where="job.toml")
    assert error.value.message == f"job.toml: {sentence}"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"training": 3}, "training = 3 is not a table; write [training], and its keys in the next line"),
        ({"model": "gpt2"}, "model = 'gpt2' is not a table; write [model], and id = 'gpt2' in the next line"),
        ({"name": 3}, "name = 3 is not a text"),
        ({"trainig": {}}, "unknown key 'trainig'; did you mean 'training'?"),
    ],
)
def test_a_table_that_is_wrong_as_a_whole(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as error:
        job_from_mapping({"model": {"id": "gpt2"}, **data}, where="job.toml")
    assert error.value.message == f"job.toml: {sentence}"


def test_no_type_of_the_library_is_in_a_message() -> None:
    """For every key, with values of every kind."""
    from msgspec.structs import fields

    from vramtop.estimator.job.job import Job
    from vramtop.estimator.job.job_file.table_fields import table_struct

    sentences = []
    for table in (field.encode_name for field in fields(Job)):
        struct = table_struct(table)
        for key in (field.encode_name for field in fields(struct)) if struct else ():
            for value in ("?!", -(10**6), 0.123, True, [[1]], {"a": 1}):
                with contextlib.suppress(InputError):
                    job_from_mapping({"model": {"id": "gpt2"}, table: {key: value}}, where="job.toml")
                    continue
                with pytest.raises(InputError) as error:
                    job_from_mapping({"model": {"id": "gpt2"}, table: {key: value}}, where="job.toml")
                sentences.append(error.value.message)
    assert len(sentences) > 200
    assert [each for each in sentences if "xpected" in each or "`" in each] == []
