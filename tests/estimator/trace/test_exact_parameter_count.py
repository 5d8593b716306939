import sys
from pathlib import Path
from typing import Any

import pytest
from model_configs import SMALL

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.find_config import ResolvedModel
from vramtop.estimator.model.read_architecture import read_architecture
from vramtop.estimator.trace.exact_parameter_count import InventoryAnswer, exact_inventory
from vramtop.estimator.trace.worker_pool import POOL
from vramtop.estimator.trace.worker_process import convert_answer

CONFIG = {**SMALL["llama"], "rms_norm_eps": 1e-6}  # by which the family is recognised
MODEL = ResolvedModel(config=CONFIG, source="inline", where="model.config", label="small")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Requests that reach a worker."""
    asked: list[Any] = []
    request = POOL.request

    def record(interpreter: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(message)
        return request(interpreter, message, *args, **kwargs)

    monkeypatch.setattr(POOL, "request", record)
    return asked


def test_exact_inventory_is_cached_and_a_broken_cache_is_a_miss(own_cache: Path, requests: list[Any]) -> None:
    first = exact_inventory(MODEL, "causal-lm", python=sys.executable)
    again = exact_inventory(MODEL, "causal-lm", python=sys.executable)
    assert again == first
    assert len(requests) == 1

    (file,) = own_cache.rglob("*.json")
    file.write_bytes(file.read_bytes()[:100])
    assert exact_inventory(MODEL, "causal-lm", python=sys.executable) == first
    assert len(requests) == 2

    shape = count_parameters(read_architecture(CONFIG))
    counted = [(group.name, group.shape, group.repeat, group.role) for group in first.groups]
    assert counted == [(group.name, group.shape, group.repeat, group.role) for group in shape.groups]
    assert first.source.startswith("transformers ")


def test_cache_that_cannot_be_written_does_no_harm(own_cache: Path) -> None:
    own_cache.write_text("a file where the folder should be")

    inventory = exact_inventory(MODEL, "feature-extraction", python=sys.executable)

    assert inventory.count == "exact"
    assert inventory.elements("head") == 0


def test_the_answer_of_another_program_is_an_error() -> None:
    with pytest.raises(CannotTellError, match="cannot read the worker's answer"):
        convert_answer({"id": 1, "groups": "none"}, InventoryAnswer)
