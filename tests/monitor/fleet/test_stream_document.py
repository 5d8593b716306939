"""The published schema of a line of the stream has the version that is written."""

from json_schemas import schema

from vramtop.monitor.fleet.stream_line import SCHEMA


def test_the_schema_is_the_one_that_is_written() -> None:
    assert schema("stream")["properties"]["schema"]["const"] == SCHEMA
