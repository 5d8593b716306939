from builders import make_board, make_gpu, make_process, make_snapshot, no_job

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.anomalies.anomaly import Anomaly
from vramtop.monitor.board.board import Board, GpuRow
from vramtop.monitor.board.display_filter import DisplayFilter, parse_devices
from vramtop.monitor.snapshot.figures import NO_ANSWER, Fault
from vramtop.monitor.snapshot.snapshot import GpuReading
from vramtop.tui.screens.base import BoardFeed
from vramtop.tui.screens.dashboard.header_text import notices
from vramtop.tui.screens.dashboard.table_view import TableView


def make_anomaly(gpu: int, held: int) -> Anomaly:
    return Anomaly(kind="unseen", gpu=gpu, pids=(), held_bytes=held * GIB, sentence=f"{held} GiB odd", advice="look")


def test_anomalies_take_at_most_two_lines_above_the_gpus() -> None:
    snapshot = make_snapshot([make_gpu(0)])
    gpus = (GpuRow(reading=snapshot.gpus[0], rows=()),)
    assert notices(Board(snapshot=snapshot, gpus=gpus, pending=()), BoardFeed(interval=1.0), 80) == []
    two = Board(snapshot=snapshot, gpus=gpus, pending=(), anomalies=(make_anomaly(0, 1), make_anomaly(1, 9)))
    assert [line.plain for line in notices(two, BoardFeed(interval=1.0), 80)] == [
        " !  GPU 1: 9 GiB odd",
        " !  GPU 0: 1 GiB odd",
    ]
    many = Board(snapshot=snapshot, gpus=gpus, pending=(), anomalies=tuple(make_anomaly(n, n) for n in range(1, 5)))
    assert [line.plain for line in notices(many, BoardFeed(interval=1.0), 80)] == [
        " !  GPU 4: 4 GiB odd",
        " !  3 more on GPU 1-3; vramtop --once shows all of them",
    ]


def test_the_same_fault_of_several_gpus_is_shown_once() -> None:
    lost = Fault(field=None, code="GPU_IS_LOST", message="the GPU no longer answers")
    hangs = Fault(field=None, code=NO_ANSWER, message="the driver hangs on this GPU: a call has not returned for 12 s")
    power = Fault(field="power_w", code="NOT_SUPPORTED", message="this GPU does not report its power draw")
    gpus = [make_gpu(0, faults=(lost,)), make_gpu(1, faults=(power,)), make_gpu(2, faults=(lost,))]
    gpus.append(make_gpu(3, faults=(hangs, power)))
    board = Board(snapshot=make_snapshot(gpus), gpus=(), pending=())
    shown = [line.plain for line in notices(replace(board, gpus=rows(gpus)), BoardFeed(interval=1.0), 120)]
    assert shown == [
        " !  GPU 0, 2: the GPU no longer answers",
        " !  GPU 3: the driver hangs on this GPU: a call has not returned for 12 s",
    ]
    other = Fault(field=None, code="RESET_REQUIRED", message="the GPU must be reset")
    gpus.append(make_gpu(4, faults=(other,)))
    board = Board(snapshot=make_snapshot(gpus), gpus=rows(gpus), pending=())
    assert [line.plain for line in notices(board, BoardFeed(interval=1.0), 120)] == [
        " !  GPU 0, 2: the GPU no longer answers",
        " !  GPU 3, 4: more faults; vramtop --once shows all of them",
    ]


def test_the_reason_for_missing_figures_is_shown_in_full() -> None:
    words = "the NVIDIA driver was updated while its old kernel module stayed loaded; reboot, or unload and load it"
    lines = [line.plain for line in notices(None, BoardFeed(interval=1.0, failure=words), 40)]
    assert len(lines) > 1
    assert all(len(line) <= 40 for line in lines)
    assert " ".join(" ".join(lines).replace(" ! ", "").split()) == words


def rows(gpus: list[GpuReading]) -> tuple[GpuRow, ...]:
    return tuple(GpuRow(reading=gpu, rows=()) for gpu in gpus)


def test_what_the_command_line_hides_is_said_and_its_rows_and_gpus_are_gone():
    chosen = DisplayFilter(text="--user ana --gpu 0,9", users=frozenset({"ana"}), devices=parse_devices("0,9"))
    gpus = [make_gpu(0, [make_process(1, 30), make_process(2, 8, user="bo")]), make_gpu(1), make_gpu(2)]
    board = make_board(gpus, estimate=no_job, display_filter=chosen)
    (line,) = notices(board, BoardFeed(interval=1.0), 120)
    assert line.plain == (
        " ONLY  --user ana --gpu 0,9: 1 of 2 processes · hidden: 1 with 8.0 GiB · GPU 1, 2 hidden · no GPU 9 here"
    )
    for name in ("runs", "processes"):
        view = TableView()
        view.name = name
        view.show_board(board)
        rows = view.rows(words="", by="PID")
        assert [row.rows[0].process.pid for row in rows if row.rows] == [1]
        assert [row.gpu.index for row in rows if not row.rows] == [0]
