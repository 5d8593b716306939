"""JSON of others: whatever cannot be read is one error."""

from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.common.limits import LimitError, decode_json
from vramtop.estimator.readers.launch_line import read_launch

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
