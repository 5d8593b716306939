"""The metrics of a board: those of ``docs/reference/metrics.md``, no others, and none for what is not known."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from exporter import OPENMETRICS, families, needs, program, samples, scrape

from vramtop.estimator.common.records import replace
from vramtop.monitor.board.board import Board, stale_after_seconds
from vramtop.monitor.export.latest_board import LatestBoard
from vramtop.monitor.export.listen_address import ListenAddress
from vramtop.monitor.export.metrics import TABLE
from vramtop.monitor.export.metrics_text import MetricsText
from vramtop.monitor.export.server import MetricsServer
from vramtop.monitor.fleet.fleet import RankFacts

GIB = 2**30
DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


def serve(*boards: Board, fail: str | None = None) -> str:
    """Return the metrics of the last board, in OpenMetrics."""
    return _text(*boards, fail=fail).encode(OPENMETRICS)[0].decode()


def _text(*boards: Board, fail: str | None = None) -> MetricsText:
    facts = RankFacts(rank=3, world_size=16, master="node01:29500")
    latest = LatestBoard(1.0, facts_of={(10, 1_000.0): facts}.get, clock=lambda: 0.0)
    for board in boards:
        latest.set(board)
    if fail:
        latest.fail(fail)
    return MetricsText(latest, "1.2")


@pytest.fixture
def url(board) -> Iterator[str]:
    """Address at which the board is served."""
    server = MetricsServer(ListenAddress("127.0.0.1", 0), _text(board))
    server.start()
    yield server.url
    server.stop()


def test_the_documented_table_is_what_is_served(url) -> None:
    lines = re.findall(r"^- `(vramtop_\w+)`(?: \((.*?)\))?: (.*)$", DOCUMENT.read_text(), flags=re.MULTILINE)
    told = {name: (about, meaning) for name, about, meaning in lines}
    assert told.keys() == {each.name for each in TABLE}
    for each in TABLE:
        about, meaning = told[each.name]
        assert meaning.startswith(each.help)
        assert each.type == "gauge" or each.type in about
    served = families(scrape(url))
    found = {
        (sample.name, family.type, tuple(sorted(sample.labels)))
        for family in served.values()
        for sample in family.samples
        if family.name.startswith("vramtop_")
    }
    assert found == {(each.name, each.type, tuple(sorted(each.all_labels))) for each in TABLE}
    assert {family.name: family.documentation for family in served.values()}.items() >= {
        each.family: each.help for each in TABLE
    }.items()


def test_states_are_those_that_queries_and_dashboards_name() -> None:
    states = {metric.family: " ".join(metric.states) for metric in TABLE if metric.type == "stateset"}
    assert states == {
        "vramtop_process_status": (
            "loading warming_up on_budget over under growing incomplete ended out_of_memory unknown"
        ),
        "vramtop_process_phase": "started context loading warming_up steady",
        "vramtop_pending_verdict": "fits tight does_not_fit unknown",
    }


@needs("promtool")
def test_promtool_finds_nothing_to_object_to(url) -> None:
    command = [program("promtool"), "check", "metrics"]
    done = subprocess.run(command, input=scrape(url, accept="text/plain"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_figures_of_a_job_are_those_of_its_row(board) -> None:
    text = serve(board)
    row = next(row for row in board.processes if row.process.pid == 10)
    labels = {"uuid": "GPU-00000000", "index": "0", "mig": "", "job_name": "grows", "user": "ana", "pid": "10"}
    assert samples(text, "vramtop_process_memory_used_bytes") == [(labels, row.process.used_bytes)]
    components = {found["component"]: value for found, value in samples(text, "vramtop_process_budget_component_bytes")}
    assert sum(components.values()) == row.budget.peak.device_bytes
    assert components["weights"] == row.budget.peak.components.weights
    assert components["slack"] == row.budget.peak.device_bytes - row.budget.peak.components.total_bytes > 0
    status = {
        (found["pid"], found["vramtop_process_status"])
        for found, value in samples(text, "vramtop_process_status")
        if value
    }
    assert status == {("10", "growing"), ("11", "ended")}
    ((_, growth),) = samples(text, "vramtop_process_memory_growth_bytes_per_second")
    assert growth == pytest.approx(0.02 * GIB, rel=0.01)
    ((_, full),) = samples(text, "vramtop_process_memory_full_seconds")
    assert full == pytest.approx(row.gpu.free_bytes / growth)
    assert samples(text, "vramtop_process_steps_total") == [(labels, 240)]


def test_pending_jobs_of_one_name_are_told_apart(board) -> None:
    text = serve(board)
    verdicts = {
        labels["job_name"]: labels["vramtop_pending_verdict"]
        for labels, value in samples(text, "vramtop_pending_verdict")
        if value
    }
    assert verdicts == {
        row.job.label + (" (2)" if at == 1 else ""): row.fit.verdict for at, row in enumerate(board.pending)
    }
    assert set(verdicts) == {"small", "small (2)", "large"}


def test_what_is_not_known_is_absent_and_never_zero(board) -> None:
    text = serve(board)
    assert {labels["index"] for labels, _ in samples(text, "vramtop_gpu_power_watts")} == {"0", "2"}
    refused = {"uuid": "GPU-00000001", "index": "1", "field": "power_w", "reason": "NOT_SUPPORTED"}
    assert (refused, 1) in samples(text, "vramtop_gpu_fault")
    assert {labels["user"] for labels, _ in samples(text, "vramtop_gpu_user_memory_used_bytes")} == {"ana"}
    counts = {(labels["index"], labels["user"]): value for labels, value in samples(text, "vramtop_gpu_user_processes")}
    assert counts == {("0", "ana"): 1, ("0", "bo"): 2, ("2", "ana"): 1}
    unattributed = {labels["index"] for labels, _ in samples(text, "vramtop_gpu_memory_unattributed_bytes")}
    assert unattributed == {"1", "2", "4"}  # of process 13 on GPU 0 the memory is unknown
    assert samples(text, "vramtop_mig_memory_used_bytes") == [
        ({"uuid": "GPU-00000002", "index": "2", "mig": "2:3"}, 2 * GIB)
    ]


def test_a_gpu_that_hangs_has_a_fault_and_no_old_figures(board) -> None:
    text = serve(board)
    hanging = {name for name in families(text) if any(labels.get("index") == "3" for labels, _ in _of(text, name))}
    assert hanging == {"vramtop_gpu", "vramtop_gpu_last_reading_timestamp_seconds", "vramtop_gpu_fault"}


def _of(text: str, family: str) -> list[tuple[dict[str, str], float]]:
    return [(sample.labels, sample.value) for sample in families(text)[family].samples]


def test_a_driver_that_fails_takes_all_figures_of_gpus_with_it(board) -> None:
    text = serve(board, fail="NO_DRIVER")
    assert samples(text, "vramtop_sampler_up") == [({}, 0)]
    assert samples(text, "vramtop_host_fault") == [({"reason": "NO_DRIVER"}, 1)]
    assert samples(text, "vramtop_sampler_last_reading_timestamp_seconds") == [({}, board.snapshot.time)]
    assert not [name for name in families(text) if name.startswith(("vramtop_gpu", "vramtop_process", "vramtop_pend"))]
    assert samples(serve(board, board), "vramtop_sampler_up") == [({}, 1)]


def test_an_old_board_is_not_served_as_a_new_one(board) -> None:
    now = [0.0]
    latest = LatestBoard(1.0, clock=lambda: now[0])
    latest.set(board)
    now[0] = stale_after_seconds(latest.interval)
    assert latest.state().board is board
    now[0] += 0.1
    state = latest.state()
    assert (state.board, state.failure, state.age_seconds) == (None, "NO_READING", now[0])
    latest.set(board)
    assert (latest.state().board, latest.state().failure, latest.state().age_seconds) == (board, None, 0)


def test_hostile_names_stay_one_label(board) -> None:
    row = board.gpus[0]
    nasty = 'x"} 1\nvramtop_sampler_up 7\n\x1b[31m\udcff' + 300 * "y"
    reading = replace(
        row.reading, processes=tuple(replace(each, user=nasty, used_bytes=1) for each in row.reading.processes)
    )
    text = serve(replace(board, gpus=(replace(row, reading=reading),)))
    ((labels, _),) = samples(text, "vramtop_gpu_user_memory_used_bytes")
    assert len(labels["user"]) == 120
    assert labels["user"].startswith('x"} 1 vramtop_sampler_up 7')
    assert samples(text, "vramtop_sampler_up") == [({}, 1)]


@pytest.mark.parametrize("accept", ["application/openmetrics-text;version=x", "text/plain;version=", "\x00;=;,"])
def test_a_format_that_does_not_exist_is_the_text_format(board, accept: str) -> None:
    body, content_type = _text(board).encode(accept)
    assert content_type.startswith("text/plain")
    assert b"# EOF" not in body


def test_only_processes_of_known_jobs_have_a_pid(board) -> None:
    served = families(serve(board)).values()
    pids = {sample.labels["pid"] for family in served for sample in family.samples if "pid" in sample.labels}
    assert pids == {"10", "11"}
