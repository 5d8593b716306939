"""The history's file keeps the newest runs, and loses none that an older version kept; failures are one sentence."""

import os
import threading
from pathlib import Path

import pytest
from builders import make_budget

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.estimator.learning.measurement import Measurement, Observed
from vramtop.monitor.history import history
from vramtop.monitor.history.history import History
from vramtop.monitor.history.new_measurement import new_measurement

GIB = 2**30


def measured(run: str = "a", *, time: float = 1000.0, device: float = 41.0, **changes: object) -> Measurement:
    """Make the measurement of a run; figures in GiB."""
    job = Job(name="secret-name", model=ModelSpec(id="meta-llama/Llama-3.1-8B"))
    observed = Observed(device_bytes=round(device * GIB), device_source="readings")
    facts = {"run": run, "state": "steady", "time": time, "card": "NVIDIA H100 80GB HBM3", **changes}
    return new_measurement(job, [make_budget(job)], observed, **facts)  # type: ignore[arg-type]


@pytest.fixture
def kept(tmp_path: Path) -> History:
    return History(tmp_path / "data" / "history.json")


def test_a_run_comes_back_as_it_was_kept(kept: History) -> None:
    first = measured(driver="580.95", versions={"torch": "2.9.1"}, command="python train.py --token x", time=5.0)
    kept.add(first)
    assert kept.list() == (first,)
    assert first.model == "Llama 3.1 8B"
    assert kept.on_card([first.card or ""]) == (first,)
    assert kept.on_card(["NVIDIA A100"]) == ()


def test_one_run_is_one_row_with_its_highest_figures(kept: History) -> None:
    kept.add(measured(device=41, time=10.0))
    kept.add(measured(device=40, time=20.0, state="ended"))
    kept.add(measured(device=39, time=30.0))  # a vramtop that has not noticed the end
    (found,) = kept.list()
    assert (found.observed.device_bytes, found.time, found.state) == (41 * GIB, 30.0, "ended")


def test_nothing_in_the_file_names_anything_of_the_user(kept: History) -> None:
    kept.add(measured(command="/home/ann/train.py --token hf_zq7", allocator="backend:native,/home/ann", driver="580"))
    content = b"".join(file.read_bytes() for file in kept.path.parent.iterdir())
    assert b"steady" in content
    assert measured(allocator="max_split_size_mb:512, expandable_segments:True").allocator.endswith("segments:True")
    assert measured(allocator="roundup_power2_divisions:[256:1,512:2,>:4]").allocator.startswith("roundup")
    for word in (b"secret-name", b"meta-llama/", b"/home", b"train.py", b"hf_zq7", os.uname().nodename.encode()):
        assert word not in content


def test_runs_are_chosen_and_forgotten(kept: History) -> None:
    for at, card in enumerate(("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3")):
        kept.add(measured(str(at), card=card, time=at * 100.0, state="ended" if at else "short"))

    assert [each.time for each in kept.list()] == [200.0, 100.0, 0.0]
    newest = kept.list()[0]
    assert kept.list(newest.run[:12]) == (newest,)
    kept.forget([each for each in kept.list() if each.time < 150.0])
    assert kept.list() == (newest,)
    kept.forget(kept.list())
    assert kept.list() == ()
    assert b"NVIDIA" not in kept.path.read_bytes()  # forgotten for good


def test_the_newest_runs_are_kept(kept: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_RUNS", 3)
    first = measured()
    for at in (4, 0, 3, 1, 2):
        kept.add(replace(first, run=str(at), time=float(at)))
    assert [each.run for each in kept.list()] == ["4", "3", "2"]


@pytest.mark.parametrize("damage", [b"no JSON at all", b'{"version": 1}', b'{"version": 1, "content": {"a": 5}}'])
def test_a_damaged_file_is_set_aside_and_named(kept: History, damage: bytes) -> None:
    kept.path.parent.mkdir()
    kept.path.write_bytes(damage)
    with pytest.raises(CannotTellError, match=r"history\.json, with your measured runs, is damaged"):
        kept.list()
    said = kept.add(measured())
    (aside,) = kept.path.parent.glob("history.json.damaged-*")
    assert said is not None
    assert aside.name in said
    assert aside.read_bytes() == damage
    assert len(kept.list()) == 1


def test_a_newer_file_is_left_as_it_is(kept: History) -> None:
    kept.add(measured())
    kept.path.write_text(kept.path.read_text().replace('"version": 1', '"version": 99'))
    before = kept.path.read_bytes()
    for use in (kept.list, lambda: kept.add(measured("b")), lambda: kept.forget([measured()])):
        with pytest.raises(CannotTellError, match="another version of vramtop and is left as it is"):
            use()  # type: ignore[operator]
    assert kept.path.read_bytes() == before


def test_runs_of_another_version_are_passed_over_and_stay(kept: History) -> None:
    kept.add(measured("a"))
    kept.path.write_text(kept.path.read_text().replace('"steady"', '"dreaming"'))
    kept.add(measured("b"))
    assert [each.run for each in kept.list()] == [measured("b").run]
    assert "dreaming" in kept.path.read_text()


def test_threads_may_share_it(kept: History) -> None:
    first = measured()
    threads = [threading.Thread(target=kept.add, args=(replace(first, run=str(at)),)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept.list()) == 8
