"""Every number of a job at its extremes, alone and in pairs: an estimate or one sentence, and little work."""

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import pytest
from model_configs import llama_config
from msgspec import inspect
from slow_cases import quick_every

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.formula.reserved.replayed import REPLAYED_BYTES
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping, with_changes
from vramtop.estimator.job.settings import MAX_GPUS

CONFIG = llama_config(hidden=64, mlp=128, layers=8, heads=4, kv_heads=2, vocab=1000)
VALUES = (1, 2, 7, 2**16, 2**31 - 1)


def numbers_of(kind: inspect.Type, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the dotted keys of all whole numbers in a job file."""
    if isinstance(kind, inspect.StructType):
        for each in kind.fields:
            yield from numbers_of(each.type, (*path, each.encode_name))
    elif isinstance(kind, inspect.UnionType):
        for option in kind.types:
            yield from numbers_of(option, path)
    elif isinstance(kind, inspect.ListType):
        yield from numbers_of(kind.item_type, path)
    elif isinstance(kind, inspect.IntType):
        yield ".".join(path)


NUMBERS = tuple(numbers_of(inspect.type_info(Job)))


def tables(changes: dict[str, Any], **config: object) -> dict[str, Any]:
    data: dict[str, Any] = {"model": {"config": {**CONFIG, **config}}, "parallel": {"strategy": "fsdp2"}}
    for dotted, value in changes.items():
        table, _, key = dotted.partition(".")
        if table == "other_models":
            data[table] = [{"role": "reference", key: value}]
        else:
            data.setdefault(table, {})[key] = value
    return data


@pytest.mark.parametrize(("first", "second"), quick_every(300, combinations(NUMBERS, 2)))
def test_extreme_numbers_in_pairs(first: str, second: str) -> None:
    sentences: list[str] = []
    for one, other in product(VALUES, VALUES):
        try:
            budget = estimate(job_from_mapping(tables({first: one, second: other}), where="job.toml"))
        except InputError as error:
            sentences.append(error.message)
            continue
        assert budget.peak.low_bytes <= budget.peak.device_bytes <= budget.peak.high_bytes
        assert len(str(budget.to_json())) < 20_000
    assert all("\n" not in sentence and len(sentence) < 300 for sentence in sentences)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data_shard": 2**31 - 1}, "data_shard 2,147,483,647 is more GPUs than any cluster has (at most 1,048,576)"),
        ({"data_shard": 2048, "tensor": 1024}, "data_shard 2,048 x tensor 1,024 is more GPUs"),
        ({"expert": 2**30}, "expert 1,073,741,824 is more GPUs"),
    ],
)
def test_more_ranks_than_any_cluster_has_are_one_sentence(changes: dict[str, int], words: str) -> None:
    with pytest.raises(InputError) as raised:
        job_from_mapping({"parallel": changes}, where="job.toml")
    assert raised.value.message.startswith(f"job.toml: parallel: {words}")
    with pytest.raises(InputError) as changed:
        with_changes(job_from_mapping({}, where=""), {f"parallel.{key}": value for key, value in changes.items()})
    assert words in changed.value.message


def test_the_largest_cluster_is_allowed() -> None:
    assert job_from_mapping({"parallel": {"data_shard": MAX_GPUS}}, where="").parallel.world_size == MAX_GPUS


@pytest.mark.parametrize("allocator", ["", "expandable_segments:True"])
def test_what_no_gpu_holds_is_estimated_without_a_replay(allocator: str) -> None:
    sizes = dict.fromkeys(("micro_batch", "sequence_length", "sequences_per_example"), 2**31 - 1)
    data = {"model": {"config": CONFIG}, "training": {**sizes, "varying_lengths": True}}
    environ = {"PYTORCH_CUDA_ALLOC_CONF": allocator}
    peak = estimate(job_from_mapping(data, where="job.toml"), environ=environ).peak
    assert REPLAYED_BYTES < peak.allocated_bytes < peak.reserved_bytes < peak.high_bytes
    assert not peak.cache_bytes
