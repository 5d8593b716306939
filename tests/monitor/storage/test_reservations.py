import multiprocessing
import os
import signal
import stat
import time
from pathlib import Path

import psutil
import pytest
from builders import make_gpu, make_mig_gpu, make_process, make_snapshot

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.limits import Limit
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.common.trust import user_name
from vramtop.monitor.storage.reservations import Reservation, Reservations


def reservation(pid: int | None = None, size: int = 20, **changes: object) -> Reservation:
    """A reservation of GPU 0 for a real process, by default this one."""
    pid = pid or os.getpid()
    facts = {
        "pid": pid,
        "start_time": psutil.Process(pid).create_time(),
        "job": "sft",
        "gpus": {"GPU-00000000": size * GIB},
    }
    return Reservation(**(facts | changes))  # type: ignore[arg-type]


@pytest.fixture
def reservations(tmp_path: Path) -> Reservations:
    return Reservations(tmp_path / "reservations")


def own_folder(reservations: Reservations) -> Path:
    return reservations.folder.with_name(f"{reservations.folder.name}-{os.geteuid()}")


def test_a_reservation_is_committed_until_it_expires(reservations: Reservations) -> None:
    snapshot = make_snapshot([make_gpu(0), make_gpu(1)])
    assert reservations.committed(snapshot) == {}
    reservations.add(reservation(until=time.time() + 60))
    assert reservations.committed(snapshot) == {0: 20 * GIB}
    reservations.add(reservation(until=time.time() - 1))
    assert reservations.committed(snapshot) == {}
    assert not list(own_folder(reservations).glob("*.json"))


def test_a_reservation_ends_with_its_process(reservations: Reservations, start_python) -> None:
    child = start_python("input()")
    reservations.add(reservation(child.pid))
    assert [each.pid for each in reservations.active()] == [child.pid]
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert reservations.active() == ()


def test_memory_held_by_the_process_and_its_children_is_deducted(tmp_path: Path) -> None:
    me = os.getpid()
    parents = {71: (70, me), 72: (70, me), 99: (1,)}
    reservations = Reservations(tmp_path / "reservations", ancestors=lambda pid: parents[pid])
    reservations.add(reservation(gpus={"GPU-00000000": 20 * GIB, "GPU-00000001": 20 * GIB, "GPU-00000002": 20 * GIB}))
    gpus = [
        make_gpu(0, [make_process(71, 8), make_process(99, 30)]),
        make_gpu(1, [make_process(72, 25)]),
        make_gpu(2, [make_process(72, None)]),
    ]
    assert reservations.committed(make_snapshot(gpus)) == {0: 12 * GIB, 2: 20 * GIB}


def test_the_lock_is_exclusive_and_released_when_its_holder_is_killed(reservations: Reservations) -> None:
    def hold(ready: "multiprocessing.synchronize.Event") -> None:
        with reservations.locked():
            ready.set()
            time.sleep(60)

    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=hold, args=(ready,))
    holder.start()
    assert ready.wait(60)
    with pytest.raises(CannotTellError, match="Another process has held"), reservations.locked(0.1):
        pass
    holder.kill()
    holder.join()
    with reservations.locked(60):
        pass


def test_the_folder_is_read_by_all_users_and_written_by_one(reservations: Reservations) -> None:
    reservations.add(reservation())
    assert stat.S_IMODE(own_folder(reservations).stat().st_mode) == 0o755


def test_what_is_no_folder_of_ones_own_is_neither_written_nor_read_nor_emptied(reservations: Reservations) -> None:
    theirs = reservations.folder.parent / "theirs"
    theirs.mkdir()
    file = theirs / "20261123-1530.json"
    file.write_text("not a reservation")
    own_folder(reservations).symlink_to(theirs)
    assert reservations.active() == ()
    assert file.exists()
    with pytest.raises(CannotTellError, match="no folder of yours"):
        reservations.add(reservation())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_reservations_of_other_users_count_and_a_folder_that_is_not_of_its_user_does_not(tmp_path: Path) -> None:
    theirs, snapshot = tmp_path / "reservations-65534", make_snapshot([make_gpu(0)])
    reservations = Reservations(tmp_path / "reservations")
    reservations.add(reservation())
    own_folder(reservations).rename(theirs)
    assert reservations.committed(snapshot) == {}
    os.chown(theirs, 65534, 65534)
    assert reservations.committed(snapshot) == {0: 20 * GIB}
    own_folder(reservations).mkdir()
    os.chown(own_folder(reservations), 65534, 65534)  # made before by the stranger
    with pytest.raises(CannotTellError, match="but of nobody"):
        reservations.add(reservation())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_no_user_can_reserve_for_other_users_processes(reservations: Reservations) -> None:
    reservations.add(reservation())
    (file,) = own_folder(reservations).glob("*.json")
    os.chown(file, 65534, 65534)
    assert reservations.active() == ()


def test_no_more_than_so_many_files_are_read(reservations: Reservations, monkeypatch: pytest.MonkeyPatch) -> None:
    reservations.add(reservation())
    monkeypatch.setattr("vramtop.monitor.storage.reservations.RESERVATIONS", Limit(what="the folder", items=0))
    assert reservations.active() == ()


def test_a_reservation_is_at_most_the_gpu_and_its_holder_is_named(reservations: Reservations) -> None:
    gpu = make_gpu(0)
    reservations.add(reservation(gpus={"GPU-00000000": 2**62}))
    snapshot = make_snapshot([gpu])
    assert reservations.committed(snapshot) == {0: gpu.total_bytes}
    (note,) = reservations.notes(snapshot)
    assert note.endswith(f"GPU 0 are reserved for sft (process {os.getpid()} of {user_name(os.geteuid())}).")


def test_memory_of_a_mig_device_is_reserved_there_alone(tmp_path: Path) -> None:  # fmt: skip
    reservations = Reservations(tmp_path / "reservations", ancestors=lambda _: ())
    reservations.add(reservation(gpus={"MIG-0-3-1": 20 * GIB}))
    assert reservations.committed(make_snapshot([make_mig_gpu(0), make_mig_gpu(1)])) == {(0, 3): 20 * GIB}
    for instance, rest in ((3, 15), (9, 20), (None, 15)):
        mine = make_process(os.getpid(), 5, gpu_instance=instance)
        assert reservations.committed(make_snapshot([make_mig_gpu(0, [mine])])) == {(0, 3): rest * GIB}
    reservations.add(reservation(gpus={"GPU-00000000": GIB}))  # before MIG mode was switched on
    assert reservations.committed(make_snapshot([make_mig_gpu()])) == {0: GIB}
