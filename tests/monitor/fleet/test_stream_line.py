"""One line of ``vramtop stream``, and which lines of other versions are understood."""

import json

import pytest
from builders import make_host, make_rank
from json_schemas import valid_json

from vramtop.monitor.fleet.stream_line import SCHEMA, StreamLineError, parse_stream_line, stream_line


def changed(line: bytes, **changes) -> bytes:
    return json.dumps({**json.loads(line), **changes}).encode()


def test_a_line_is_read_as_it_was_written():
    host = make_host("a", make_rank(1, facts={"master": "a:1", "rank": 0, "world_size": 2}))
    line = stream_line(host)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert valid_json("stream", line)["schema"] == SCHEMA
    assert parse_stream_line(line) == host


@pytest.mark.parametrize("schema", [SCHEMA - 1, SCHEMA, SCHEMA + 1])
def test_versions_may_differ_by_one(schema):
    line = stream_line(make_host("a", make_rank(1, status="resting")))
    host = parse_stream_line(changed(line, schema=schema, planets=9))
    assert host.gpus[0].processes[0].status == "resting"


@pytest.mark.parametrize(("schema", "where"), [(SCHEMA - 2, "there"), (SCHEMA + 2, "here")])
def test_other_versions_are_said(schema, where):
    line = stream_line(make_host("a", vramtop_version="9.1"))
    with pytest.raises(StreamLineError, match=f"9.1 there speaks schema {schema}.*update vramtop {where}"):
        parse_stream_line(changed(line, schema=schema))


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"{}", b"Welcome", b'{"schema":1,', b"[1]", b'{"schema":1,"host":7}', b'{"schema":"1","host":"a"}'),
        b'{"schema":1,"host":"a","gpus":[{"index":0,"free_bytes":"x"}]}',
        b"[" * 10_000,
        b'{"schema":1,"host":"\xff"}',
    ],
)
def test_anything_else_is_refused_in_a_sentence(line):
    with pytest.raises(StreamLineError):
        parse_stream_line(line)
