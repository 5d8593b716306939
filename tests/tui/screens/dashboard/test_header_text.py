from collections.abc import Callable
from dataclasses import replace

from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.anomalies.anomaly import Anomaly
from vramtop.monitor.board.board import Board, GpuRow
from vramtop.monitor.snapshot.snapshot import NO_ANSWER, Fault, GpuReading, Snapshot
from vramtop.tui.screens.base import FeedStatus
from vramtop.tui.screens.dashboard.header_text import notices


def make_anomaly(gpu: int, held: int) -> Anomaly:
    return Anomaly(
        kind="unseen", gpu_index=gpu, pids=(), held_bytes=held * GIB, sentence=f"{held} GiB odd", advice="look"
    )


def test_anomalies_take_at_most_two_lines_above_the_gpus(
    make_snapshot: Callable[..., Snapshot], make_gpu: Callable[..., GpuReading]
) -> None:
    snapshot = make_snapshot([make_gpu(0)])
    gpus = (GpuRow(reading=snapshot.gpus[0], rows=()),)
    assert notices(Board(snapshot=snapshot, gpus=gpus, pending=()), FeedStatus(interval=1.0), 80) == []
    two = Board(snapshot=snapshot, gpus=gpus, pending=(), anomalies=(make_anomaly(0, 1), make_anomaly(1, 9)))
    assert [line.plain for line in notices(two, FeedStatus(interval=1.0), 80)] == [
        " !  GPU 1: 9 GiB odd",
        " !  GPU 0: 1 GiB odd",
    ]
    many = Board(snapshot=snapshot, gpus=gpus, pending=(), anomalies=tuple(make_anomaly(n, n) for n in range(1, 5)))
    assert [line.plain for line in notices(many, FeedStatus(interval=1.0), 80)] == [
        " !  GPU 4: 4 GiB odd",
        " !  3 more on GPU 1-3: vramtop --once shows all of them",
    ]


def test_the_same_fault_of_several_gpus_is_shown_once(
    make_snapshot: Callable[..., Snapshot], make_gpu: Callable[..., GpuReading]
) -> None:
    lost = Fault(field=None, code="GPU_IS_LOST", message="the GPU no longer answers")
    hangs = Fault(field=None, code=NO_ANSWER, message="the driver hangs on this GPU: a call has not come back for 12 s")
    power = Fault(field="power_w", code="NOT_SUPPORTED", message="this GPU does not report its power draw")
    gpus = [make_gpu(0, faults=(lost,)), make_gpu(1, faults=(power,)), make_gpu(2, faults=(lost,))]
    gpus.append(make_gpu(3, faults=(hangs, power)))
    board = Board(snapshot=make_snapshot(gpus), gpus=(), pending=())
    shown = [line.plain for line in notices(replace(board, gpus=rows(gpus)), FeedStatus(interval=1.0), 120)]
    assert shown == [
        " !  GPU 0, 2: the GPU no longer answers",
        " !  GPU 3: the driver hangs on this GPU: a call has not come back for 12 s",
    ]
    other = Fault(field=None, code="RESET_REQUIRED", message="the GPU must be reset")
    gpus.append(make_gpu(4, faults=(other,)))
    board = Board(snapshot=make_snapshot(gpus), gpus=rows(gpus), pending=())
    assert [line.plain for line in notices(board, FeedStatus(interval=1.0), 120)] == [
        " !  GPU 0, 2: the GPU no longer answers",
        " !  GPU 3, 4: more faults; vramtop --once shows all",
    ]


def test_the_reason_for_missing_figures_is_shown_in_full() -> None:
    words = "the NVIDIA driver was updated while its old kernel module stayed loaded; reboot, or unload and load it"
    lines = [line.plain for line in notices(None, FeedStatus(interval=1.0, failure=words), 40)]
    assert len(lines) > 1
    assert all(len(line) <= 40 for line in lines)
    assert " ".join(" ".join(lines).replace(" ! ", "").split()) == words


def rows(gpus: list[GpuReading]) -> tuple[GpuRow, ...]:
    return tuple(GpuRow(reading=gpu, rows=()) for gpu in gpus)
