"""What is too large to be traced is refused before torch is imported; replicas cost nothing."""

from typing import Any

import pytest
from worker_requests import complete

from vramtop.estimator.worker.request.protocol import UnsupportedError
from vramtop.estimator.worker.request.request import read_request
from vramtop.estimator.worker.step.supported_jobs import check_supported


def message(**tables: Any) -> dict[str, Any]:
    optimizer = {"path": "x:Y", "options": {}}
    return complete({"config": {"model_type": "llama", "num_hidden_layers": 2}, "optimizer": optimizer, **tables})


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"parallel": {"strategy": "fsdp2", "data_shard": 4096}}, "data_shard = 4,096 cannot be traced; at most 512"),
        ({"parallel": {"strategy": "fsdp2", "tensor": 1024}}, "tensor = 1,024 cannot be traced; at most 512"),
        ({"config": {"num_hidden_layers": 2000}}, "a model of 2,000 layers cannot be traced in time; the limit is 512"),
        (
            {"config": {"n_layer": 10**12}},
            "a model of 1,000,000,000,000 layers cannot be traced in time",
        ),
        (
            {"training": {"micro_batch": 2**31 - 1, "sequence_length": 2**31 - 1}},
            "a micro-batch of 4,611,686,014,132,420,609 tokens cannot be traced",
        ),
    ],
)
def test_too_large_jobs_are_refused(tables: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        check_supported(read_request(message(**tables)))
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize("config", [{"num_hidden_layers": None}, {"num_hidden_layers": "many"}, {"n_layer": 512}, {}])
def test_other_configs_are_not_refused_for_their_layers(config: dict[str, Any]) -> None:
    check_supported(read_request(message(config=config)))


def test_two_copies_stand_for_any_number() -> None:
    def ranks(**sizes: int) -> int:
        return read_request(message(parallel=sizes)).parallel.world_size

    assert [ranks(data_replicate=copies) for copies in (1, 2, 3, 2**20)] == [1, 2, 2, 2]
    assert ranks(data_replicate=2**16, data_shard=8, tensor=2) == 32
