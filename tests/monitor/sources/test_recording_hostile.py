"""Untrusted recordings are played or refused in one sentence, and a full disk ends only the recording."""

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from waiting import until

from vramtop.estimator.common.errors import InputError, VramtopError
from vramtop.estimator.job.job import Job, ModelSpec, Parallel
from vramtop.monitor.snapshot.figures import MAX_UNIX_SECONDS
from vramtop.monitor.snapshot.snapshot import Snapshot, Source
from vramtop.monitor.sources.recording import TRUNCATED_CODE, RecordingWriter, read_recording
from vramtop.monitor.sources.replay import ReplaySource
from vramtop.monitor.sources.sampler import EndOfRecording
from vramtop.tui.background.recorder import Recorder

HEADER = b'{"vramtop_recording": 1}\n'
PLAIN: dict[str, Any] = {"time": 100.0, "source": {"kind": "nvml"}, "gpus": [{"index": 0, "uuid": "u", "name": "n"}]}


def packed(*lines: bytes) -> bytes:
    return gzip.compress(HEADER + b"".join(line + b"\n" for line in lines), 1)


def line(**changes: object) -> bytes:
    return json.dumps({**PLAIN, **changes}).encode()


def gpu(**changes: object) -> bytes:
    return line(gpus=[{**PLAIN["gpus"][0], **changes}])


def short(value: bytes) -> str:
    return ascii(value[-24:])


@pytest.mark.parametrize("kind", ["pipe", "device", "kernel"])
def test_anything_but_a_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = {"device": Path("/dev/zero"), "kernel": Path("/proc/self/status")}.get(kind, tmp_path / "x")
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(InputError, match=str(path)):
        ReplaySource(path).open()


@pytest.mark.parametrize(
    "bad",
    [
        line(time=1e300),
        line(time=-1),
        line().replace(b"100.0", b"NaN"),
        line().replace(b"100.0", b"1" + b"0" * 400),
        gpu(total_bytes=0),
        gpu(mig=[{"uuid": "MIG-1", "gpu_instance": 1, "compute_instance": 0, "total_bytes": 0}]),
        gpu(used_bytes=-1),
        gpu(used_bytes=10**30),
        gpu(power_w=1e300),
        gpu(processes=[{"pid": -1, "start_time": 1, "used_bytes": 1, "kinds": []}]),
        gpu(processes=[{"pid": 1, "start_time": 1e300, "used_bytes": 1, "kinds": []}]),
        gpu(processes=[{"pid": 1, "start_time": 1, "used_bytes": 1, "kinds": []}] * 20_001),
        line(gpus=PLAIN["gpus"] * 1_000),
        line(pending=[{"training": {"micro_batch": 10**30}}]),
        b"[" * 100_000,
        line(pending=[{"model": {"id": "a/b", "config": "DEEP"}}]).replace(b'"DEEP"', b'{"a":' * 99 + b"1" + b"}" * 99),
        b" " * 9_000_000,
    ],
    ids=short,
)
def test_an_invalid_line_ends_the_recording(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(packed(line(), bad, line()))
    read = list(read_recording(path))
    assert len(read) == 1
    assert read[0].faults[-1].code == TRUNCATED_CODE


@pytest.mark.parametrize("data", [b"\0" * 2**26, b"[{}" + b",{}" * 2**22, b"\n" * 2**24], ids=short)
def test_a_decompression_bomb_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(data, 1))
    with pytest.raises(InputError, match="not a vramtop recording"):
        next(read_recording(path))


def test_everything_before_damage_is_read(tmp_path: Path) -> None:
    path, ends = tmp_path / "x.gz", []
    with RecordingWriter(path) as writer:
        for number in range(20):
            writer.write(Snapshot(time=float(number), source=Source(kind="nvml", host=os.urandom(9).hex()), gpus=()))
            ends.append(path.stat().st_size)
    whole, chance = path.read_bytes(), random.Random(7)  # noqa: S311 - the same each time
    for _ in range(100):
        at = chance.randrange(ends[0], len(whole) - 8)
        path.write_bytes(whole[:at] + chance.randbytes(40) + whole[at + 40 :])
        assert len(list(read_recording(path))) >= sum(end <= at for end in ends)


def test_snapshots_of_constant_or_decreasing_times_are_skipped_in_steps(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(packed(*(line(time=float(10_000 - number // 2)) for number in range(1_000))))
    source = ReplaySource(path, clock=lambda: 0.0)
    source.open()
    assert [source.read() is not None for _ in range(5)] == [True] * 5  # none of which goes through all of them
    with pytest.raises(EndOfRecording):
        [source.read() for _ in range(5)]


def test_rebased_times_never_exceed_the_maximum(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    process = {"pid": 1, "start_time": MAX_UNIX_SECONDS, "used_bytes": 1, "kinds": []}
    path.write_bytes(packed(line(time=0.0, gpus=[{**PLAIN["gpus"][0], "processes": [process]}])))
    source = ReplaySource(path, rebase=True, now=lambda: 2e9)
    source.open()
    snapshot = source.read()
    assert snapshot.processes()[0][1].start_time == MAX_UNIX_SECONDS


def test_code_of_a_recorded_job_is_never_run(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    code = Job(model=ModelSpec(id="os:getcwd", code_folder="/tmp"))  # noqa: S108
    remote = Job(model=ModelSpec(id="/models/x", trust_remote_code=True), parallel=Parallel(tensor_plan="os:getcwd"))
    with RecordingWriter(path) as writer:
        writer.write(Snapshot(time=1.0, source=Source(kind="nvml"), gpus=(), pending=(code, remote)))
    (snapshot,) = read_recording(path)
    (job,) = snapshot.pending
    assert job.model.id == "/models/x"
    assert not job.model.trust_remote_code
    assert job.parallel.tensor_plan is None


WRITES = """
import itertools, os, sys
from pathlib import Path
from vramtop.monitor.sources.recording import RecordingWriter
from vramtop.monitor.snapshot.snapshot import Snapshot, Source
writer = RecordingWriter(Path(sys.argv[1]))
for number in itertools.count():
    writer.write(Snapshot(time=float(number), source=Source(kind="nvml", host=os.urandom(200).hex()), gpus=()))
    print(number, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 17, 60])
def test_a_recorder_killed_while_it_writes_keeps_all_that_it_reported_as_written(
    tmp_path, lines: int, start_python
) -> None:
    path = tmp_path / "x.gz"
    recorder = start_python(WRITES, path)
    for _ in range(lines):
        recorder.stdout.readline()
    recorder.kill()
    said = lines + len([word for word in recorder.stdout.read().split("\n")[:-1] if word])
    assert len(list(read_recording(path))) >= said


NUMBER = st.none() | st.booleans() | st.integers(-2, 5) | st.floats() | st.sampled_from([2**63, 10**30, "x", "\ud800"])
PROCESS = st.dictionaries(
    st.sampled_from(["pid", "start_time", "used_bytes", "kinds", "counters", "gpu_instance"]), NUMBER
)
GPU = st.dictionaries(st.sampled_from(["index", "used_bytes", "processes", "mig", "read_at", "name"]), NUMBER)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(GPU, st.lists(PROCESS, max_size=2)), max_size=3),
    st.dictionaries(st.sampled_from(["time", "faults", "watched", "pending", "last_words"]), NUMBER),
    st.integers(0, 400),
)
def test_any_recording_is_played_or_refused(tmp_path, gpus, top, at) -> None:
    process = {"pid": 1, "start_time": 1.0, "used_bytes": 5, "kinds": ["compute"]}
    listed = [{**PLAIN["gpus"][0], "processes": [{**process, **each} for each in ps], **fields} for fields, ps in gpus]
    data = packed(line(), line(gpus=listed, **top))
    path = tmp_path / "x.gz"
    path.write_bytes(data[:at] + b"\0" + data[at + 1 :])
    now = iter(range(100))
    source = ReplaySource(path, rebase=True, clock=lambda: float(next(now)))
    try:
        source.open()
        while True:
            source.read()
    except VramtopError as error:
        sentence = error.message
    assert "x.gz" in sentence


def test_a_recorder_on_a_full_disk_reports_it_and_ends(tmp_path: Path) -> None:
    told: list[VramtopError] = []
    (tmp_path / "x").write_text("")
    recorder = Recorder(tmp_path / "x" / "y.gz", told.append)
    recorder.add(Snapshot(time=1.0, source=Source(kind="nvml"), gpus=()))
    until(lambda: told)
    assert "y.gz: cannot be written" in told[0].message
    recorder.stop()
