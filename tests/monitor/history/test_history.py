"""The history's file is private, bounded, safe for several programs, and never lost; every failure is one sentence."""

import contextlib
import json
import multiprocessing
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.estimator.learning.measurement import Measurement, Observed
from vramtop.monitor.history import history
from vramtop.monitor.history.history import Choice, History
from vramtop.monitor.history.new_measurement import new_measurement

GIB = 2**30


@pytest.fixture
def measured(make_budget: Callable) -> Callable[..., Measurement]:
    """Make the measurement of a run; figures in GiB."""

    def make(run: str = "a", *, time: float = 1000.0, device: float = 41.0, **changes: object) -> Measurement:
        job = Job(name="secret-name", model=ModelSpec(id="meta-llama/Llama-3.1-8B"))
        observed = Observed(device_bytes=round(device * GIB), device_source="readings")
        facts = {"run": run, "state": "steady", "time": time, "card": "NVIDIA H100 80GB HBM3", **changes}
        return new_measurement(job, [make_budget(job)], observed, **facts)  # type: ignore[arg-type]

    return make


@pytest.fixture
def kept(tmp_path: Path) -> History:
    return History(tmp_path / "data" / "history.sqlite3")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_comes_back_as_it_was_kept(kept: History, measured: Callable[..., Measurement]) -> None:
    first = measured(driver="580.95", versions={"torch": "2.9.1"}, command="python train.py --token x", time=5.0)
    kept.add(first)
    assert kept.list() == (first,)
    assert first.model == "Llama 3.1 8B"
    assert kept.on_card([first.card or ""]) == (first,)
    assert kept.on_card(["NVIDIA A100"]) == ()


def test_one_run_is_one_row_with_its_highest_figures(kept: History, measured: Callable[..., Measurement]) -> None:
    kept.add(measured(device=41, time=10.0))
    kept.add(measured(device=40, time=20.0, state="ended"))
    kept.add(measured(device=39, time=30.0))  # a vramtop that has not noticed the end
    (found,) = kept.list()
    assert (found.observed.device_bytes, found.time, found.state) == (41 * GIB, 30.0, "ended")


def test_nothing_in_the_file_names_anything_of_the_user(kept: History, measured: Callable[..., Measurement]) -> None:
    kept.add(measured(command="/home/ann/train.py --token hf_zq7", allocator="backend:native,/home/ann", driver="580"))
    content = b"".join(file.read_bytes() for file in kept.path.parent.iterdir())
    assert b"steady" in content
    assert measured(allocator="max_split_size_mb:512, expandable_segments:True").allocator.endswith("segments:True")
    assert measured(allocator="roundup_power2_divisions:[256:1,512:2,>:4]").allocator.startswith("roundup")
    for word in (b"secret-name", b"meta-llama/", b"/home", b"train.py", b"hf_zq7", os.uname().nodename.encode()):
        assert word not in content


def test_the_file_and_its_folder_are_private(kept: History, measured: Callable[..., Measurement]) -> None:
    umask = os.umask(0)
    try:
        kept.add(measured())
        files = {file.name: mode(file) for file in kept.path.parent.iterdir()}
    finally:
        os.umask(umask)
    assert files == {"history.sqlite3": 0o600}
    assert mode(kept.path.parent) == 0o700


@pytest.mark.slow
def test_several_programs_write_at_once(kept: History, measured: Callable[..., Measurement]) -> None:
    kept.add(measured("first"))
    program = (
        "import sys; from pathlib import Path; from dataclasses import replace\n"
        "from vramtop.monitor.history.history import History\n"
        "history = History(Path(sys.argv[1])); first = history.list()[0]\n"
        "for at in range(20): history.add(replace(first, run=f'{sys.argv[2]}-{at}'))\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(kept.path), str(at)]) for at in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(kept.list()) == 61


def test_runs_are_chosen_and_forgotten(kept: History, measured: Callable[..., Measurement]) -> None:
    for at, card in enumerate(("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3")):
        kept.add(measured(str(at), card=card, time=at * 100.0, state="ended" if at else "short"))

    def times(**choice: object) -> list[float]:
        return [each.time for each in kept.list(Choice(**choice))]  # type: ignore[arg-type]

    assert times() == [200.0, 100.0, 0.0]
    assert times(card="h100") == [200.0, 0.0]
    assert times(card="100_") == []  # no wildcard
    assert times(model="LLAMA", since=100.0) == [200.0, 100.0]
    assert times(state="short") == [0.0]
    run = kept.list()[0].run
    assert times(run=run[:12]) == [200.0]
    assert kept.forget(Choice(before=150.0)) == 2
    assert times() == [200.0]
    assert kept.forget(Choice()) == 1
    assert kept.list() == ()
    assert b"NVIDIA" not in kept.path.read_bytes()  # forgotten for good


def test_the_newest_runs_are_kept(
    kept: History, measured: Callable[..., Measurement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_RUNS", 3)
    first = measured()
    for at in (4, 0, 3, 1, 2):
        kept.add(replace(first, run=str(at), time=float(at)))
    assert [each.run for each in kept.list()] == ["4", "3", "2"]


@pytest.mark.slow
def test_the_file_stays_small(
    kept: History, measured: Callable[..., Measurement], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (history, history):
        monkeypatch.setattr(module, "MAX_BYTES", 2**17)
    first = measured()
    for at in range(40):
        kept.add(replace(first, run=f"{at:03}", time=float(at)))
    assert kept.path.stat().st_size <= 2**17
    runs = [each.run for each in kept.list()]
    assert runs == [f"{at:03}" for at in range(39, 39 - len(runs), -1)]
    assert len(runs) > 10


@pytest.mark.parametrize("damage", [b"no database at all", b"SQLite format 3\0" + b"\xff" * 8000], ids=["text", "page"])
def test_a_damaged_file_is_set_aside_and_named(
    kept: History, measured: Callable[..., Measurement], damage: bytes
) -> None:
    kept.path.parent.mkdir()
    kept.path.write_bytes(damage)
    with pytest.raises(CannotTellError, match="is damaged"):
        kept.list()
    said = kept.add(measured())
    (aside,) = kept.path.parent.glob("history.sqlite3.damaged-*")
    assert said is not None
    assert aside.name in said
    assert aside.read_bytes() == damage
    assert len(kept.list()) == 1


@pytest.mark.parametrize("data", ["[" * 200_000, None], ids=["unreadable", "a deep job"])
def test_a_run_that_is_nested_too_deeply_is_left_out(
    kept: History, measured: Callable[..., Measurement], data: str | None
) -> None:
    kept.add(measured())
    kept.add(other := measured("b"))
    with sqlite3.connect(str(kept.path)) as connection:
        (text,) = connection.execute("SELECT data FROM measurement WHERE run = ?", (other.run,)).fetchone()
        job = {**json.loads(text)["job"], "model": {"config": json.loads('{"a":' * 200 + "1" + "}" * 200)}}
        data = data or json.dumps({**json.loads(text), "job": job})
        connection.execute("UPDATE measurement SET data = ? WHERE run = ?", (data, other.run))
    connection.close()
    assert kept.list() == (measured(),)


@pytest.mark.slow
def test_damage_in_the_middle_is_noticed(kept: History, measured: Callable[..., Measurement]) -> None:
    first = measured()
    for at in range(12):
        kept.add(replace(first, run=f"{at:03}"))
    data = bytearray(kept.path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    kept.path.write_bytes(bytes(data))
    assert "was kept as" in (kept.add(first) or "")
    assert len(kept.list()) == 1


def test_a_newer_file_is_left_as_it_is(kept: History, measured: Callable[..., Measurement]) -> None:
    kept.add(measured())
    with sqlite3.connect(kept.path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = kept.path.read_bytes()
    for use in (kept.list, lambda: kept.add(measured("b")), lambda: kept.forget(Choice())):
        with pytest.raises(CannotTellError, match=r"newer vramtop .schema 99.*update vramtop"):
            use()  # type: ignore[operator]
    assert kept.path.read_bytes() == before


def test_runs_of_another_version_are_passed_over(kept: History, measured: Callable[..., Measurement]) -> None:
    kept.add(measured("a"))
    kept.add(measured("b"))
    with sqlite3.connect(kept.path) as connection:
        text = """UPDATE measurement SET data = replace(data, '"state":"steady"', '"state":"dreaming"') WHERE run = ?"""
        connection.execute(text, (kept.list()[0].run,))
    connection.close()
    assert len(kept.list()) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_home_that_may_only_be_read(kept: History, measured: Callable[..., Measurement]) -> None:
    kept.add(measured())
    kept.path.chmod(0o400)
    kept.path.parent.chmod(0o500)
    try:
        assert len(kept.list()) == 1
        with pytest.raises(CannotTellError, match="cannot be written"):
            kept.add(measured("b"))
    finally:
        kept.path.parent.chmod(0o700)


def test_no_folder_can_be_made(measured: Callable[..., Measurement], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    nowhere = History(tmp_path / "file" / "history.sqlite3")
    with pytest.raises(CannotTellError, match=r"history.sqlite3, with your measured runs, cannot be written: "):
        nowhere.add(measured())
    assert nowhere.list() == ()


def test_what_stands_in_its_place_is_no_file(kept: History, measured: Callable[..., Measurement]) -> None:
    kept.path.parent.mkdir()
    os.mkfifo(kept.path)
    for use in (kept.list, lambda: kept.add(measured())):
        with pytest.raises(CannotTellError, match="not a regular file"):
            use()  # type: ignore[operator]


@pytest.mark.slow
def test_a_file_that_another_program_holds_locked_is_one_sentence(
    kept: History, measured: Callable[..., Measurement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "BUSY_SECONDS", 0.05)
    kept.add(measured())
    holder = sqlite3.connect(kept.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(CannotTellError, match="cannot be written: database is locked"):
            kept.add(measured("b"))
        assert len(kept.list()) == 1  # readers go on
    finally:
        holder.close()


def test_threads_may_share_it(kept: History, measured: Callable[..., Measurement]) -> None:
    first = measured()
    threads = [threading.Thread(target=kept.add, args=(replace(first, run=str(at)),)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept.list()) == 8


_TABLE = "run, time, state, card, machine, model, shape, data"
_ENDLESS = "WITH RECURSIVE each(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM each)"
_VIEW = f"CREATE VIEW measurement AS {_ENDLESS} SELECT n AS run, n AS time, "
_FORGED = (
    (f"{_VIEW} '' AS data FROM each", 1, "more than 1 s"),
    (f"{_VIEW} hex(zeroblob(999999)) AS data FROM each", 1, "more than 1 s"),
    (f"{_VIEW} hex(zeroblob(999999)) AS data FROM each LIMIT 9", 1, "MiB"),
    (f"CREATE TABLE measurement ({_TABLE})", -5, "is damaged"),
    ("CREATE TABLE cookies (name)", 0, "it belongs to another program"),
)


@pytest.mark.parametrize(("statement", "version", "sentence"), _FORGED)
def test_a_forged_file_is_one_sentence_in_time_and_stays_as_it_is(
    statement: str, version: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MEASURED_RUNS", replace(history.MEASURED_RUNS, seconds=1.0))
    file = tmp_path / "theirs.sqlite3"
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {version}")
    before = file.read_bytes()
    monkeypatch.setattr(history, "MAX_BYTES", 2**22)
    with pytest.raises(CannotTellError, match=sentence):
        History(file).list()
    assert file.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


def test_rows_that_are_no_text_are_passed_over(kept: History, measured: Callable[..., Measurement]) -> None:
    kept.add(measured())
    with contextlib.closing(sqlite3.connect(kept.path, isolation_level=None)) as connection:
        insert = (
            "INSERT INTO measurement SELECT ?, time, state, card, machine, model, shape, ? FROM measurement LIMIT 1"
        )
        connection.execute(insert, ("x", b"\xff"))
        connection.execute(insert, ("y", 5))
    assert len(kept.list()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("log", [False, True], ids=["ours", "with an older vramtop's log"])
def test_who_may_only_read_sees_the_newest_runs_too(measured: Callable[..., Measurement], log: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are root's alone
        kept = History(Path(folder) / "history.sqlite3")
        kept.add(measured("a"))
        reader = sqlite3.connect(kept.path)  # as long as it is open, new runs stay in the log
        if log:
            reader.execute("PRAGMA journal_mode = WAL")
            reader.execute("UPDATE measurement SET time = 7")
            reader.commit()
        kept.path.parent.chmod(0o755)
        for each in kept.path.parent.glob("history*"):
            each.chmod(0o644)
        answer, ask = multiprocessing.Pipe(duplex=False)

        def read_as_nobody() -> None:
            os.setresuid(65534, 65534, 65534)
            ask.send([run.run for run in kept.list()])

        child = multiprocessing.get_context("fork").Process(target=read_as_nobody)
        child.start()
        child.join()
        assert answer.recv() == [measured("a").run]
        reader.close()


def test_an_older_vramtops_log_is_taken_over(kept: History, measured: Callable[..., Measurement]) -> None:
    kept.add(measured("a"))
    with contextlib.closing(sqlite3.connect(kept.path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    kept.add(measured("b"))
    assert len(kept.list()) == 2
    assert [each.name for each in kept.path.parent.iterdir()] == ["history.sqlite3"]
