"""Memory snapshots: read from pickles of every protocol and from JSON, hostile ones refused, blocks by component."""

import io
import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
from memory_snapshots import AUTOGRAD, FORWARD, GATHER, LOAD, MIB, RECOMPUTE, Recorder, training_crash

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.limits import Limit
from vramtop.estimator.crash.explanation import explain_failure, failure_of_snapshot
from vramtop.estimator.crash.snapshot import snapshot_reader
from vramtop.estimator.crash.snapshot.records import MemorySnapshot
from vramtop.estimator.crash.snapshot.snapshot_reader import (
    is_snapshot,
    load_plain_pickle,
    parse_snapshot,
    read_snapshot,
)


def opened(data: bytes) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type]


def read(data: Any, device: int | None = None) -> MemorySnapshot:
    return parse_snapshot(opened(pickle.dumps(data)), device)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_pickles_of_every_protocol(protocol: int) -> None:
    shared = [{"filename": "ü.py", "line": 3}]
    data = {
        "a": [1, -1, 255, 65_536, 2**40, -(2**70), 0.5, None, True, False, "x" * 300, (1, 2), (), (1,), (1, 2, 3, 4)],
        "shared": [shared, shared],
        1: {"many": list(range(2500))},
        "bytes": b"\xff\x00" if protocol >= 3 else "text",
    }
    found = load_plain_pickle(io.BytesIO(pickle.dumps(data, protocol)))
    assert found == data
    assert found["shared"][0] is found["shared"][1]


class _Hostile:
    def __init__(self, call: tuple[Any, ...]) -> None:
        self._call = call

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "made"
    for call in ((os.mkdir, (str(target),)), (exec, (f"open({str(target)!r}, 'w')",)), (dict, ())):
        hostile = pickle.dumps({"segments": [_Hostile(call)], "device_traces": []}, protocol)
        with pytest.raises(InputError, match="nothing in it was executed"):
            load_plain_pickle(io.BytesIO(hostile))
    assert not target.exists()


def test_the_process_that_reads_says_the_same_and_how_far_it_is() -> None:
    data, told = pickle.dumps(training_crash()), list[str]()
    assert read_snapshot(opened(data), progress=told.append) == parse_snapshot(opened(data))
    assert told[0].startswith("reading the snapshot: 0")
    assert told[-1] == "assigning the snapshot's memory"


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x8d" + struct.pack("<Q", 2**60),  # a text of an exabyte
        b"\x80\x04\x8b" + struct.pack("<I", 2**31 - 1),  # an integer of two gigabytes
        b"\x80\x04]r" + struct.pack("<I", 2**32 - 1) + b".",  # a memo of 64 GiB
        b"\x80\x04}" + b"(" * 10_000,
        b"\x80\x04})" + b"\x85" * 1_000_000 + b"Ns.",  # a key a million deep, whose hash ends the interpreter
        b"\x80\x04}])s.",
        b"\x80\x04",
        b"\x80\x04h\x05.",
        b"\x80\x04NNs.",
        b"\x80\x7f.",
        b"",
        pickle.dumps(training_crash())[:-500],
    ],
    ids=range(12),
)
def test_damaged_and_huge_pickles_end_in_a_sentence(data: bytes) -> None:
    with pytest.raises(InputError, match=r"incomplete|memory"):
        read_snapshot(opened(data))


class _Endless(io.BytesIO):
    """A pickle of empty lists, each of which it drops, without an end: however fast the machine is, time runs out."""

    def read(self, size: int | None = -1) -> bytes:
        is_first = self.tell() == 0
        self.seek(1)
        return b"\x80\x04" if is_first else b"]0" * ((size or 0) // 2)


def test_what_takes_too_long_or_too_much_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        limit = "limits.SNAPSHOT_READER = limits.Limit(what='reading it', seconds=1.0, bytes=2**32)"
        program = snapshot_reader._PROGRAM.replace(
            "from", f"from vramtop.estimator.common import limits; {limit}; from"
        )
        patch.setattr(snapshot_reader, "_PROGRAM", program)
        patch.setattr(snapshot_reader, "SNAPSHOT_READER", Limit(what="reading it", seconds=1.0))
        with pytest.raises(InputError, match="reading it took more than 1 s"):
            read_snapshot(_Endless())
    monkeypatch.setattr(snapshot_reader, "SNAPSHOT", Limit(what="it", bytes=1 << 10))
    with pytest.raises(InputError, match="it has more than 1 KiB"):
        read_snapshot(opened(pickle.dumps(training_crash())))


def test_what_filled_the_card() -> None:
    found = read(training_crash())
    assert {name: size // MIB for name, size in found.components.items()} == {
        "optimizer": 800,
        "weights": 400,
        "gradients": 400,
        "activations": 240,
        "logits": 250,
    }
    assert found.allocated_bytes == 2090 * MIB
    assert (found.unallocated_bytes, found.free_blocks, found.largest_free_bytes) == (56 * MIB, 2, 40 * MIB)
    assert found.total_bytes == 2400 * MIB
    assert [str(group.place) for group in found.groups if group.component == "activations"] == [
        "llama/modeling_llama.py:155 forward"
    ]


def test_the_allocation_that_failed() -> None:
    failed = read(training_crash()).failed
    assert (failed.tried_bytes, failed.free_bytes) == (500 * MIB, 120 * MIB)
    assert (failed.component, failed.phase) == ("logits", "forward")
    assert str(failed.place) == "loss/loss_utils.py:36 fixed_cross_entropy"


def test_what_autograd_holds_is_a_gradient_only_where_a_weight_has_its_size() -> None:
    run = Recorder()
    run.alloc(100, LOAD)
    for size in (100, 100, 50, 7):
        run.alloc(size, AUTOGRAD)
    found = read(run.snapshot()).components
    assert found["gradients"] == 100 * MIB
    assert found["gradients or temporary"] == 157 * MIB


def test_recomputed_and_gathered_tensors() -> None:
    run = Recorder()
    run.alloc(3, RECOMPUTE)
    run.alloc(5, GATHER)
    run.alloc(9, FORWARD)
    assert read(run.snapshot()).components == {"activations": 12 * MIB, "communication": 5 * MIB}


def test_the_stack_of_torch_1_13_and_segments_alone() -> None:
    data = training_crash()
    for segment in data["segments"]:
        for block in segment["blocks"]:
            stack = block.pop("frames")
            block["history"] = (
                [{"addr": block["address"], "real_size": block["size"], "frames": stack}] if stack else []
            )
            del block["address"]
    found = read(data["segments"])
    assert found.components["weights"] == 400 * MIB
    assert not found.has_history


def test_the_gpu_that_failed_is_shown_unless_another_is_named() -> None:
    data, other = training_crash(), Recorder()
    other.alloc(9000, LOAD)
    for segment in (second := other.snapshot())["segments"]:
        segment["device"] = 1
    data["segments"] += second["segments"]
    data["device_traces"].append(other.trace)
    assert read(data).device == 0
    assert read(data, device=1).allocated_bytes == 9000 * MIB
    with pytest.raises(InputError, match="nothing about GPU 7; it has GPU 0, 1"):
        read(data, device=7)


def test_json_and_other_files() -> None:
    text = json.dumps(training_crash())
    assert is_snapshot(text[:4096].encode())
    assert parse_snapshot(opened(text.encode())) == read(training_crash())
    assert not is_snapshot(b"[rank0]: Traceback")
    assert not is_snapshot(b'{"loss": 1.5}\n')
    for wrong in (b"{", b"[" * 100_000, b"{}", b"[1]", b'{"segments": []}', b'{"segments": [5, {}]}'):
        with pytest.raises(InputError):
            parse_snapshot(opened(wrong))


def test_senseless_values_are_no_sizes() -> None:
    data = training_crash()
    data["segments"][0].update(total_size="9", device=-3, blocks={"a": 1})
    data["segments"][1]["blocks"][0].update(size=-5, frames="x", address="y")
    data["device_traces"][0][0] = {"action": 5, "addr": None, "frames": [1, {"line": "x"}]}
    read(data)


def test_a_limit_that_the_program_has_set_is_no_capacity() -> None:
    recorder = Recorder()
    recorder.alloc(64, LOAD)
    recorder.oom(900, FORWARD, free_mib=2000)
    extra = {"total_bytes": {"0": 4096 * MIB}, "failure": {"device": 0, "total_bytes": 512 * MIB}}
    limited = failure_of_snapshot(read(recorder.snapshot(vramtop=extra)))
    extra["failure"] = {"device": 0, "total_bytes": 4096 * MIB}
    whole = failure_of_snapshot(read(recorder.snapshot(vramtop=extra)))
    assert limited
    assert limited.memory
    assert (limited.memory.total_bytes, limited.memory.allowed_bytes) == (4096 * MIB, 512 * MIB)
    assert "The program limits itself to 0.5 GiB" in explain_failure(limited).findings[0]
    assert whole
    assert whole.memory
    assert whole.memory.allowed_bytes is None


@pytest.mark.parametrize(
    ("name", "limit", "sentence"),
    [
        ("SNAPSHOT_BLOCKS", Limit(what="it", items=3), "it has more than 3 blocks, which no GPU holds"),
        (
            "SNAPSHOT_EVENTS",
            Limit(what="its history", items=3),
            "its history has more than 3 entries; record with a smaller max_entries",
        ),
    ],
)
def test_a_snapshot_beyond_a_limit_says_the_limit(name, limit, sentence, monkeypatch) -> None:
    monkeypatch.setattr(snapshot_reader, name, limit)
    with pytest.raises(InputError) as error:
        read(training_crash())
    assert error.value.message == sentence


def test_json_beyond_the_limit_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_reader, "SNAPSHOT_JSON", Limit(what="it is JSON and", bytes=1 << 10))
    with pytest.raises(InputError, match="it is JSON and has more than 1 KiB; give the pickle"):
        parse_snapshot(opened(json.dumps(training_crash()).encode()))
