from collections.abc import Callable

from vramtop.estimator.sizes import GIB
from vramtop.monitor.board import Board, GpuRow
from vramtop.monitor.oddity import Oddity
from vramtop.monitor.snapshot import GpuReading, Snapshot
from vramtop.tui.header_text import Feed, notices


def odd(gpu: int, held: int) -> Oddity:
    return Oddity(
        kind="unseen", gpu_index=gpu, pids=(), held_bytes=held * GIB, sentence=f"{held} GiB odd", advice="look"
    )


def test_what_is_odd_is_said_above_the_gpus_in_two_lines_at_most(
    make_snapshot: Callable[..., Snapshot], make_gpu: Callable[..., GpuReading]
) -> None:
    snapshot = make_snapshot([make_gpu(0)])
    gpus = (GpuRow(reading=snapshot.gpus[0], rows=()),)
    assert notices(Board(snapshot=snapshot, gpus=gpus, pending=()), Feed(interval=1.0), 80) == []
    two = Board(snapshot=snapshot, gpus=gpus, pending=(), oddities=(odd(0, 1), odd(1, 9)))
    assert [line.plain for line in notices(two, Feed(interval=1.0), 80)] == [
        " !  GPU 1: 9 GiB odd",
        " !  GPU 0: 1 GiB odd",
    ]
    many = Board(snapshot=snapshot, gpus=gpus, pending=(), oddities=tuple(odd(n, n) for n in range(1, 5)))
    assert [line.plain for line in notices(many, Feed(interval=1.0), 80)] == [
        " !  GPU 4: 4 GiB odd",
        " !  3 more on GPU 1, 2, 3: vramtop --once says all of them",
    ]
