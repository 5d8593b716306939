"""The reading of a host is what its board shows."""

import msgspec
import pytest
from builders import make_board, make_gpu, make_process, make_run, make_snapshot, make_watchlist

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.fleet.board_reading import reading_of_board
from vramtop.monitor.fleet.fleet import HostReading, RankFacts
from vramtop.monitor.snapshot.figures import Fault

FACTS = RankFacts(rank=3, world_size=8, master="node01:29500")


@pytest.fixture
def reading():
    name = "tune --api-key hf_abcdefghijklmnopqrstuvwxyzabcdefgh"
    run = make_run(name, 71, missing=("training.micro_batch",))
    gpus = [make_gpu(0, [make_process(71, 12), make_process(80, 3)]), replace(make_gpu(1), processes=None)]
    board = make_board(gpus, run, device=20, pending=["next"])
    return board, reading_of_board(board, host="node02", facts_of=lambda key: FACTS if key[0] == 71 else None)


def test_figures_are_those_of_the_board(reading):
    board, host = reading
    gpu, unknown = host.gpus
    assert (gpu.free_bytes, gpu.total_bytes) == (board.gpus[0].reading.free_bytes, board.gpus[0].reading.total_bytes)
    assert gpu.unattributed_bytes == board.gpus[0].unattributed_bytes
    assert gpu.committed_bytes == board.committed[0] == 8 * GIB
    assert unknown.processes is None
    assert unknown.unattributed_bytes is None
    rank, other = gpu.processes
    assert (rank.pid, rank.used_bytes, rank.budget_bytes) == (71, 12 * GIB, 20 * GIB)
    assert (rank.status, rank.missing, rank.facts, rank.run) == ("incomplete", ("training.micro_batch",), FACTS, 71)
    assert (other.job, other.status, other.facts, other.run) == (None, None, None, None)
    assert (host.pending[0].job, host.pending[0].verdict) == ("next", board.pending[0].fit.verdict)


def test_it_survives_json_and_has_no_secrets(reading):
    text = msgspec.json.encode(reading[1])
    assert msgspec.json.decode(text, type=HostReading) == reading[1]
    assert b"hf_abc" not in text


def test_what_alerts_need_is_passed_on():
    watchlist = make_watchlist(make_run("leaks", 10), low=30, high=50)
    lost = replace(make_gpu(1), used_bytes=None, faults=(Fault(field=None, code="GPU_IS_LOST", message="it is lost"),))
    asleep = replace(make_gpu(2), used_bytes=None, faults=(Fault(field=None, code="ASLEEP", message="asleep"),))
    unlisted = Fault(field=None, code="NOT_LISTED", message="GPU 3 is gone")
    host = None
    for second in range(0, 250, 10):
        gpu = make_gpu(0, [make_process(10, 32 + second * 0.02)])
        snapshot = make_snapshot([gpu, lost, asleep], time=2_000.0 + second, faults=(unlisted,))
        host = reading_of_board(watchlist.update(snapshot), host="a")
    (process,) = host.gpus[0].processes
    assert process.status == "growing"
    assert process.full_seconds == pytest.approx((79.5 - 1 - 36.8) / 0.02, rel=0.05)
    assert [(gpu.is_lost, gpu.is_asleep) for gpu in host.gpus] == [(False, False), (True, False), (False, True)]
    assert host.unlisted == host.faults == ("GPU 3 is gone",)


def test_a_hanging_driver_is_said():
    quiet = Fault(field="utilisation_percent", code="NOT_SUPPORTED", message="this GPU does not report its utilisation")
    fault = Fault(field=None, code="NO_ANSWER", message="the driver does not answer")
    host = reading_of_board(make_board([make_gpu(0, [], faults=(quiet, fault))]), host="a")
    assert (host.gpus[0].is_stale, host.gpus[0].fault) == (True, "the driver does not answer")
