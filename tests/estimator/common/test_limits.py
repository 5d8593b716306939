"""JSON of others: whatever cannot be read is one error, and no module decodes it by hand."""

import re
from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.common.limits import LimitError, decode_json
from vramtop.estimator.readers.launch_line import read_launch

ROOT = Path(__file__).parents[3]
DEEP = "[" * 200_000
DECODES = re.compile(r"json\.(?:loads?|JSONDecoder|Decoder|decode)\b(?!\")")  # not the name of a script's own call
OWN = {  # of vramtop's own processes, through a pipe or a private folder, or what it has encoded itself
    "estimator/trace/measure/real_step.py",
    "estimator/trace/isolated_run.py",
    "estimator/trace/rehearsal.py",
    "estimator/trace/worker_process.py",
    "estimator/worker/measure/__main__.py",
    "estimator/worker/inventory.py",
    "estimator/worker/rehearsal/__main__.py",
    "estimator/worker/rehearsal/tensor_files.py",
    "estimator/worker/request/protocol.py",
    "monitor/attach/automatic/read_program.py",
    "monitor/storage/pending_jobs.py",
}
AS_PYTHON_WRITES_IT = {  # NaN, Infinity, or more behind the end; each catches RecursionError and checks what it takes
    "estimator/crash/snapshot/snapshot_reader.py",
    "estimator/readers/program/run_logs.py",
    "estimator/readers/source/data_files.py",
    "estimator/readers/source/notebooks.py",
    "monitor/probe/probe_reader.py",
}


def test_nothing_else_decodes_json_by_hand() -> None:
    found = {
        str(file.relative_to(ROOT))
        for package in ("estimator", "monitor", "tui")
        for file in (ROOT / package).rglob("*.py")
        if DECODES.search(file.read_text())
    }
    assert found == {"estimator/common/limits.py", *OWN, *AS_PYTHON_WRITES_IT}
    for name in AS_PYTHON_WRITES_IT:
        assert "RecursionError" in (ROOT / name).read_text()


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
