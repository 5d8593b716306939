"""Recordings are read back unchanged, and every bad file is reported in one sentence."""

import gzip
import subprocess
import sys

import pytest
from builders import make_gpu, make_process, make_snapshot
from json_schemas import valid_json

from vramtop.estimator.common.errors import InputError, VramtopError
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job, Lora, ModelSpec, Parallel
from vramtop.monitor.snapshot.figures import Fault
from vramtop.monitor.snapshot.gpu_details import EccErrors, GpuDetails, NvLinks, PcieLink, RemappedRows
from vramtop.monitor.snapshot.snapshot import HostLoad, ProcessFigures, WatchedJob
from vramtop.monitor.sources.recording import TRUNCATED_CODE, RecordingWriter, read_recording


@pytest.fixture
def snapshots():
    """Five snapshots that use every field of a snapshot."""
    job = Job(
        name="llama-8b-sft",
        model=ModelSpec(config={"hidden_size": 64, "rope_scaling": None}),
        lora=Lora(targets="all-linear"),
        parallel=Parallel(strategy="fsdp2", data_shard=8),
    )
    fault = Fault(field="power_w", code="NOT_SUPPORTED", message="this GPU does not report its power draw")
    lost = replace(make_gpu(1, faults=(fault,)), total_bytes=None, used_bytes=None, free_bytes=None, processes=None)
    details = GpuDetails(
        level="full",
        clock_reasons=0x24,
        fan_percents=(30, 42),
        ecc=EccErrors(recent_corrected=3),
        remapped_rows=RemappedRows(after_corrected=1, after_uncorrected=0, pending=True, failed=False),
        pcie=PcieLink(generation=4, sent_per_second=10**9),
        nvlink=NvLinks(count=4, peers=("switch",)),
        vbios="92.00.45.00.00",
        faults=(fault,),
    )
    host = HostLoad(cpu_percent=12.5, cpus=64, ram_used_bytes=2**33, load=(1.0, 2.0, 3.0))
    figures = ProcessFigures(sm_percent=48.0, cpu_percent=1612.5, rss_bytes=2**34, faults=(fault,))
    with_figures = replace(make_process(4713, 7), figures=figures)
    watched = WatchedJob(job=job, pids=((4711, 1000.0), (4712, None)))
    return [
        make_snapshot(
            [
                make_gpu(
                    0, [make_process(used=used), make_process(4712, None, note="zombie"), with_figures], details=details
                ),
                lost,
            ],
            time=2000.0 + used,
            faults=(fault,),
            watched=(watched,),
            pending=(job, Job()),
            host=host,
        )
        for used in range(5)
    ]


def write(path, snapshots):
    with RecordingWriter(path) as writer:
        for snapshot in snapshots:
            writer.write(snapshot)
    return path


@pytest.fixture
def recorded(tmp_path, snapshots):
    """A finished recording of the five snapshots."""
    return write(tmp_path / "run.jsonl.gz", snapshots)


@pytest.mark.parametrize(("name", "step"), [("run.jsonl.gz", 1), ("run.jsonl", 31)])
def test_a_file_truncated_anywhere_yields_its_beginning_or_an_error(tmp_path, snapshots, name, step):
    whole, cut, lengths = write(tmp_path / name, snapshots).read_bytes(), tmp_path / "cut", set()
    for size in range(0, len(whole), step):
        cut.write_bytes(whole[:size])
        try:
            read = list(read_recording(cut))
        except InputError:
            read = []
        assert [snapshot.gpus for snapshot in read] == [snapshot.gpus for snapshot in snapshots[: len(read)]]
        is_whole = name == "run.jsonl" and whole[:size].endswith(b"\n")
        if name == "run.jsonl":
            assert len(read) == max(whole[:size].count(b"\n") - 1, 0)
        codes = [fault.code for snapshot in read for fault in snapshot.faults]
        assert codes.count(TRUNCATED_CODE) == (bool(read) and not is_whole)
        if read and not is_whole:
            assert read[-1].faults[-1].message.startswith("the recording cut is cut off or damaged here")
        lengths.add(len(read))
    assert lengths >= {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "the file is empty"),
        (b"hello, world", "not a vramtop recording"),
        (gzip.compress(b"[1, 2]\n", mtime=0), "not a vramtop recording"),
        (gzip.compress(b'{"other": "\xff"}\n', mtime=0), "not a vramtop recording"),
        (gzip.compress(b"[" * 100_000 + b"\n", mtime=0), "not a vramtop recording"),
        (gzip.compress(b'{"vramtop_recording": true}\n', mtime=0), "not a vramtop recording"),
        (gzip.compress(b"", mtime=0), "not a vramtop recording"),
        (gzip.compress(b'{"vramtop_recording": 7}\n{}\n', mtime=0), r"newer vramtop \(recording version 7"),
        (gzip.compress(b'{"vramtop_recording": 1}\n', mtime=0), "no whole snapshot"),
        (gzip.compress(b'{"vramtop_recording": 1}\n' + b'{"a":' * 100_000 + b"\n", mtime=0), "no whole snapshot"),
    ],
)
def test_a_file_that_is_no_recording_is_reported_in_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "other.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=sentence) as caught:
        list(read_recording(path))
    assert caught.value.message.startswith(str(path))
    assert "\n" not in caught.value.message


def test_an_existing_file_is_not_overwritten_by_default(recorded, snapshots):
    before = recorded.read_bytes()
    with pytest.raises(InputError, match="exists already"):
        RecordingWriter(recorded)
    assert recorded.read_bytes() == before
    with RecordingWriter(recorded, overwrite=True) as writer:
        writer.write(snapshots[0])
    assert list(read_recording(recorded)) == snapshots[:1]


@pytest.mark.parametrize(
    ("name", "packed"), [("run.jsonl", False), ("run.jsonl.gz", True), ("run.GZ", True), ("run", False)]
)
def test_the_name_decides_what_is_written_and_the_content_what_is_read(tmp_path, snapshots, name, packed):
    path = write(tmp_path / name, snapshots)
    content = path.read_bytes()
    assert content.startswith(b"\x1f\x8b") == packed
    lines = (gzip.decompress(content) if packed else content).splitlines()
    assert valid_json("recording-head", lines[0])["vramtop_recording"] == 1
    assert len(lines) == 1 + len(snapshots)
    assert len(valid_json("recording-line", lines[1])["gpus"]) == 2
    other = tmp_path / "renamed.txt"
    path.rename(other)
    assert list(read_recording(other)) == list(snapshots)


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_without_a_snapshot_there_is_no_file_and_an_old_one_stays(tmp_path, snapshots, name):
    path = tmp_path / name
    RecordingWriter(path).close()
    assert list(tmp_path.iterdir()) == []
    with RecordingWriter(path) as writer:
        writer.write(snapshots[0])
    before = path.read_bytes()
    RecordingWriter(path, overwrite=True).close()
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert path.read_bytes() == before
    with RecordingWriter(path, overwrite=True) as writer:
        writer.write(snapshots[1])
        assert [file.name for file in tmp_path.iterdir()] == [name]
    assert [snapshot.time for snapshot in read_recording(path)] == [snapshots[1].time]


_FILL_DISK = """
import resource, sys
from pathlib import Path
from vramtop.estimator.common.errors import VramtopError
from vramtop.monitor.snapshot.snapshot import Snapshot, Source
from vramtop.monitor.sources.recording import RecordingWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    with RecordingWriter(Path(sys.argv[1])) as writer:
        for number in range(100_000):
            writer.write(Snapshot(time=float(number), source=Source(kind="nvml", host=str(number) * 50), gpus=()))
except VramtopError as error:
    print(number, error.message)
"""


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
@pytest.mark.parametrize("room", [0, 20, 5000])
def test_what_was_written_before_the_disk_was_full_can_be_played(tmp_path, name, room):
    path = tmp_path / name
    line = [sys.executable, "-c", _FILL_DISK, str(path), str(room)]
    said = subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()
    count, _, sentence = said.partition(" ")
    assert sentence.startswith(f"{path}: the recording ends here: File too large; ")
    if room < 100:
        assert sentence.endswith("nothing was written")
        assert not path.exists()
        return
    assert sentence.endswith(f"the {count} snapshots before can be played")
    found = list(read_recording(path))
    assert [snapshot.time for snapshot in found] == [float(number) for number in range(int(count))]


def test_overwriting_follows_a_link(tmp_path, snapshots):
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "run.jsonl", tmp_path / "run.jsonl"
    link.symlink_to(target)
    for at in (0, 1):
        with RecordingWriter(link, overwrite=True) as writer:
            writer.write(snapshots[at])
        assert link.is_symlink()
        assert [snapshot.time for snapshot in read_recording(target)] == [snapshots[at].time]
    assert [file.name for file in target.parent.iterdir()] == ["run.jsonl"]


def test_a_snapshot_that_could_not_be_read_again_ends_the_recording(tmp_path, snapshots):
    path = tmp_path / "run.jsonl"
    huge = make_snapshot([replace(make_gpu(0), name="x" * 2**23)])
    with RecordingWriter(path) as writer:
        writer.write(snapshots[0])
        with pytest.raises(VramtopError, match="more than 8 MiB, too many processes; the snapshot before"):
            writer.write(huge)
    assert len(list(read_recording(path))) == 1
