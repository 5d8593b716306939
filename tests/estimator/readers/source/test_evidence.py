from typing import Any

import pytest

from vramtop.estimator.readers.source.evidence import Finding


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
