"""A recording as a whole: series keep peaks and gaps in a bounded size; events are found with their times."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from builders import make_gpu, make_snapshot
from eventful_recording import BEGIN, DIED, FOUND, GAP, GAP_END, LOST, STARTED, write_recording
from hypothesis import given, strategies as st

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.monitor.sources.memory_series import MemorySeries
from vramtop.monitor.sources.recorded import Recorded, read_recorded
from vramtop.monitor.sources.recording import TRUNCATED_CODE, RecordingWriter


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return read_recorded(write_recording(tmp_path_factory.mktemp("recorded") / "run.jsonl"), estimate)


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=300), st.integers(2, 20))
def test_a_series_keeps_its_peak_and_its_lowest_in_bounded_size(sizes: list[int], capacity: int) -> None:
    series = MemorySeries(capacity)
    for time, size in enumerate(sizes):
        series.add(time, size, before=time - 1)
    (stretch,) = series.stretches()
    assert len(stretch) <= capacity
    assert max(each.high_bytes for each in stretch) == max(sizes) == series.high_bytes
    assert min(each.low_bytes for each in stretch) == min(sizes)
    assert (stretch[0].begin, stretch[-1].end) == (0, len(sizes) - 1)
    for each in stretch:  # each interval has the extremes of exactly its own readings
        own = sizes[int(each.begin) : int(each.end) + 1]
        assert (each.low_bytes, each.high_bytes) == (min(own), max(own))


def test_merging_never_closes_a_gap_while_there_is_something_else_to_merge() -> None:
    series = MemorySeries(16)
    for time in range(500):
        if 200 <= time < 230:  # not read
            continue
        series.add(time, time, before=None if time == 230 else time - 1)
    before, after = series.stretches()
    assert (before[0].begin, before[-1].end, after[0].begin, after[-1].end) == (0, 199, 230, 499)


def test_a_series_of_gaps_alone_stays_bounded() -> None:
    series = MemorySeries(16)
    for time in range(0, 2000, 2):
        series.add(time, time, before=time - 1)
    assert sum(map(len, series.stretches())) <= 16
    assert series.high_bytes == 1998


def test_a_time_without_readings_is_a_gap_in_every_series(recorded: Recorded) -> None:
    gap = (BEGIN + GAP, BEGIN + GAP_END)
    (event,) = (event for event in recorded.events if event.kind == "gap")
    assert (event.time, event.end) == gap
    first, second = recorded.gpus[0].used.stretches()
    assert (first[-1].end, second[0].begin) == gap
    ranks, program = recorded.runs
    for process in (*ranks.processes, *program.processes):
        ends = [(a[-1].end, b[0].begin) for a, b in pairwise(process.used.stretches())]
        assert gap in ends


def test_a_lost_gpu_is_an_event_and_has_no_memory_meanwhile(recorded: Recorded) -> None:
    lost, back = (event for event in recorded.events if event.kind in ("gpu_lost", "gpu_back"))
    assert (lost.time, lost.gpus) == (BEGIN + LOST, ("1",))
    assert "fallen off the bus" in lost.sentence
    assert (back.time, back.gpus) == (BEGIN + FOUND, ("1",))
    stretches = recorded.gpus[1].used.stretches()
    assert [(stretch[0].begin - BEGIN, stretch[-1].end - BEGIN) for stretch in stretches] == [
        (0, LOST - 1),
        (FOUND, GAP),
        (GAP_END, 79),
    ]


def test_a_run_that_starts_leaves_its_budget_and_dies_has_events_with_their_times(recorded: Recorded) -> None:
    run = recorded.runs[0]
    kinds = [event.kind for event in recorded.events if event.run == run.key]
    assert kinds == ["started", "diverged", "diverged", "out_of_memory"]  # each rank left its budget once
    events = {event.kind: event for event in recorded.events if event.run == run.key}
    assert events["started"].time == BEGIN + STARTED
    assert events["diverged"].time == BEGIN + STARTED + 10
    assert "OVER its budget" in events["diverged"].sentence
    assert events["out_of_memory"].time == run.ended_at == BEGIN + DIED
    assert "run out of memory" in events["out_of_memory"].sentence
    assert run.peak_bytes == 70 * GIB
    assert run.budget is not None
    assert "ran out of memory with 70.0 GiB, expected 23.4" in run.divergence.sentence


def test_a_run_that_was_running_before_has_no_start(recorded: Recorded) -> None:
    program = recorded.runs[1]
    assert program.job is None
    assert program.peak_bytes == 3 * GIB
    assert not [event for event in recorded.events if event.run == program.key]


def test_a_run_that_ends_without_an_error_is_no_failure(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "run.jsonl", held_gib=23.0)
    path.write_text(path.read_text().replace('"OutOfMemoryError"', "null"))
    found = read_recorded(path, estimate)
    own = [event for event in found.events if event.run == found.runs[0].key]
    assert [(event.kind, event.time - BEGIN) for event in own] == [("started", STARTED), ("ended", DIED)]


def test_a_recording_that_is_cut_off_says_so(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "cut.jsonl", held_gib=23.0)
    text = path.read_bytes()
    path.write_bytes(text[: len(text) // 2])
    found = read_recorded(path, estimate)
    assert [event.kind for event in found.events].count("cut") == 1
    assert TRUNCATED_CODE not in " ".join(found.faults)


def test_a_run_whose_job_cannot_be_estimated_has_a_reason_and_an_end(tmp_path: Path) -> None:
    job = job_from_mapping({"name": "unknown", "model": {"id": "no-such-model"}}, where="test")
    found = read_recorded(write_recording(tmp_path / "run.jsonl", job=job), estimate)
    run = found.runs[0]
    assert run.job == job
    assert run.budget is None
    assert "no-such-model" in (run.problem or "")
    own = [event for event in found.events if event.run == run.key]
    assert [(event.kind, event.time - BEGIN) for event in own] == [("started", STARTED), ("ended", DIED)]


def test_a_server_stands_beside_the_budget_on_its_gpu(tmp_path: Path) -> None:
    tables = {"model": {"id": "llama-3.2-1b"}, "training": {"mode": "inference", "precision": "bf16"}}
    job = job_from_mapping({"name": "server", **tables, "inference": {"engine": "vllm"}}, where="test")
    run = read_recorded(write_recording(tmp_path / "run.jsonl", job=job), estimate).runs[0]
    assert run.budget.peak.low_bytes < 70 * GIB < run.budget.peak.high_bytes  # its share of an 80 GiB GPU
    comparison = run.processes[0].row.comparison
    assert comparison.expected_bytes == run.budget.steady_device_bytes


def test_a_rank_that_dies_alone_is_an_event(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    plain = write_recording(tmp_path / "whole.jsonl").read_text().splitlines()
    lines = []
    for line in plain:  # the second rank goes on
        snapshot = json.loads(line)
        if snapshot.get("time", 0) >= BEGIN + DIED and "gpus" in snapshot:
            before = json.loads(lines[-1])["gpus"][1]
            snapshot["gpus"][1] = {**before, "read_at": snapshot["time"]}
        lines.append(json.dumps(snapshot))
    path.write_text("\n".join(lines) + "\n")
    events = [event for event in read_recorded(path, estimate).events if event.kind in ("out_of_memory", "ended")]
    assert [(event.time - BEGIN, event.gpus) for event in events] == [(DIED, ("0",))]
    assert "pid 101 on GPU 0 has run out of memory" in events[0].sentence


def test_readings_before_which_the_clock_was_set_back_are_said(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "run.jsonl") as writer:
        for time in (1000.0, 1001.0, 400.0, 401.0, 1002.0):
            writer.write(replace(make_snapshot([make_gpu(0)]), time=time))
    found = read_recorded(tmp_path / "run.jsonl", estimate)
    assert found.recording.readings == 3
    assert found.faults == ("2 readings are left out, not later than those before: the clock was set back",)
