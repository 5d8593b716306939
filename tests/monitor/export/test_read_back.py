"""What is exported can be read back: a board's metrics give the reading of the host that the board itself gives."""

import msgspec
from builders import make_budget, make_gpu, make_snapshot
from exporter import OPENMETRICS, families

from vramtop.estimator.common.records import replace
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.export.latest_board import LatestBoard
from vramtop.monitor.export.metrics_text import MetricsText
from vramtop.monitor.fleet.board_reading import reading_of_board
from vramtop.monitor.fleet.fleet import FleetGpu, HostReading, RankFacts
from vramtop.monitor.fleet.prometheus.series import Sample, Target
from vramtop.monitor.fleet.prometheus.vramtop_hosts import vramtop_hosts
from vramtop.monitor.snapshot.figures import Fault
from vramtop.monitor.snapshot.snapshot import GpuReading

FACTS = RankFacts(rank=3, world_size=16, master="node01:29500")
TARGET = Target("", "vramtop", "node07:10440")


def read_back(*boards, fail: str | None = None) -> HostReading:
    """Export boards, scrape the last one, and read the host from its samples."""
    latest = LatestBoard(1.0, facts_of={(10, 1_000.0): FACTS}.get, clock=lambda: 0.0)
    for board in boards:
        latest.set(board)
    if fail:
        latest.fail(fail)
    text = MetricsText(latest, "1.2").encode(OPENMETRICS)[0].decode()
    found = [sample for family in families(text).values() for sample in family.samples]

    def ask(expression: str) -> list[Sample]:
        """Answer an expression as Prometheus would: a metric, ``{field}`` empty or not, ``== 1``."""
        name, _, wanted = expression.partition(" == ")
        name, _, matcher = name.partition("{")
        return [
            msgspec.convert(
                {
                    "metric": {**each.labels, "job": TARGET.job, "instance": TARGET.instance},
                    "value": [2_300.0, str(each.value)],
                },
                Sample,
            )
            for each in found
            if each.name == name
            and (not wanted or each.value == float(wanted))
            and (not matcher or (each.labels["field"] == "") == matcher.startswith('field=""'))
        ]

    (host,) = vramtop_hosts(ask, {TARGET: 2_300.0}).values()
    return host


def memory(gpu: FleetGpu) -> dict[str, object]:
    names = "index uuid total_bytes used_bytes free_bytes committed_bytes unattributed_bytes closed"
    return {name: getattr(gpu, name) for name in names.split()}


def test_gpus_jobs_and_pending_jobs_of_a_board_are_read_back(board) -> None:
    expected = reading_of_board(board, host="node07", facts_of={(10, 1_000.0): FACTS}.get)
    found = read_back(board)
    assert found.is_live
    assert (found.time, found.since, found.vramtop_version) == (expected.time, 2_300.0, "1.2")
    assert [memory(gpu) for gpu in found.gpus[:3]] == [memory(gpu) for gpu in expected.gpus[:3]]
    assert memory(found.gpus[4]) == memory(expected.gpus[4])
    assert found.gpus[4].closed == "does not allow compute programs (compute mode prohibited)"
    assert [gpu.name for gpu in found.gpus[:3]] == [gpu.name for gpu in expected.gpus[:3]]
    unnamed = [{**memory(each), "uuid": None} for each in expected.gpus[2].devices]
    assert [memory(device) for device in found.gpus[2].devices] == unnamed
    (job,) = [row for gpu in found.gpus for row in gpu.processes or () if row.job]
    (wanted,) = [row for gpu in expected.gpus for row in gpu.processes or () if row.job and row.used_bytes]
    same = "pid start_time used_bytes peak_bytes user job status steps step_seconds run full_seconds"
    assert all(getattr(job, name) == getattr(wanted, name) for name in same.split())
    assert (job.budget_bytes, job.low_bytes, job.high_bytes) == (
        wanted.budget_bytes,
        wanted.low_bytes,
        wanted.high_bytes,
    )
    assert job.facts == FACTS
    assert [(each.verdict, each.device_bytes) for each in found.pending] == [
        (each.verdict, each.device_bytes) for each in expected.pending
    ]


def test_other_processes_are_the_rest_of_their_user(board) -> None:
    rows = read_back(board).gpus[0].processes or ()
    others = [(row.user, row.used_bytes, row.note) for row in rows if row.job is None]
    assert others == [("bo", None, "2 other processes")]  # the memory of one is unknown


def test_a_gpu_that_hangs_has_no_figures(board) -> None:
    hanging = read_back(board).gpus[3]
    assert (hanging.used_bytes, hanging.free_bytes, hanging.total_bytes) == (None, None, None)
    assert "NO_ANSWER" in (hanging.fault or "")


def test_a_host_whose_sampler_gives_no_readings_is_silent(board) -> None:
    host = read_back(board, fail="the driver is gone")
    assert host.state == "silent"
    assert "no readings" in (host.reason or "")
    assert host.totals.gpus == 0


def read_back_fault(code: str, *gpus: GpuReading) -> HostReading:
    snapshot = make_snapshot(gpus, faults=(Fault(field=None, code=code, message="no driver"),))
    return read_back(Watchlist(lambda _: make_budget()).update(snapshot))


def test_a_host_without_driver_is_live_and_says_so() -> None:
    host = read_back_fault("NO_DRIVER")
    assert (host.state, host.faults) == ("live", ("there is no NVIDIA driver",))


def test_a_lost_gpu_and_one_that_is_no_longer_listed_say_so() -> None:
    lost = replace(make_gpu(1), used_bytes=None, faults=(Fault(field=None, code="GPU_IS_LOST", message="gone"),))
    host = read_back_fault("NOT_LISTED", make_gpu(0), lost)
    assert [gpu.is_lost for gpu in host.gpus] == [False, True]
    words = "it no longer answers; the host's kernel log says why, and it needs a reset or a reboot (GPU_IS_LOST)"
    assert (host.gpus[1].fault, host.unlisted) == (words, ("NOT_LISTED",))
