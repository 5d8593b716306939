from pathlib import Path

import psutil
import pytest
from builders import make_budget, make_device

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.host_need import HostNeed
from vramtop.monitor.board.fit import check_fit, with_host_memory
from vramtop.monitor.host.available_ram import available_host_memory, host_verdict

NEED = HostNeed(process=GIB, loaded=10 * GIB, loads_once=False, mapped=5 * GIB, optimizer=8 * GIB)


@pytest.mark.parametrize(
    ("available", "ranks", "verdict"),
    [(13, 1, "fits"), (12, 1, "tight"), (10, 1, "does_not_fit"), (22, 2, "tight"), (21, 2, "does_not_fit")],
)
def test_verdicts(available: int, ranks: int, verdict: str) -> None:
    found = host_verdict(NEED, available * GIB, ranks=ranks)
    assert found.verdict == verdict
    assert "while loading" in found.sentence
    assert found.available_bytes == available * GIB


def test_a_job_that_fits_the_gpus_but_not_the_host_does_not_fit() -> None:
    budget = replace(make_budget(), host=NEED)
    on_gpus = check_fit(budget, [make_device()])
    assert on_gpus.verdict == "fits"
    small = with_host_memory(on_gpus, budget, 4 * GIB, ranks=1)
    assert small.verdict == "does_not_fit"
    assert "11.0 GiB of host memory while loading, and 4.0 GiB are available" in small.sentence
    host = small.to_json()["host"]
    assert (host["verdict"], host["available_bytes"]) == ("does_not_fit", 4 * GIB)
    large = with_host_memory(on_gpus, budget, 400 * GIB, ranks=1)
    assert (large.verdict, large.sentence) == ("fits", on_gpus.sentence)
    assert with_host_memory(on_gpus, make_budget(), 0, ranks=1) == on_gpus


def test_the_memory_limit_of_the_container_counts(tmp_path: Path) -> None:
    assert available_host_memory(tmp_path) <= psutil.virtual_memory().total
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert available_host_memory(tmp_path) > 4096
    (tmp_path / "memory.max").write_text("5000\n")
    assert available_host_memory(tmp_path) == 4000
    (tmp_path / "memory.stat").write_text("anon 400\ninactive_file 500\n")
    assert available_host_memory(tmp_path) == 4500
