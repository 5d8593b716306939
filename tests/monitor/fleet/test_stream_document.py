"""docs/reference/stream.md lists every field of a line, and no other."""

import re
from pathlib import Path

import pytest
from json_schemas import schema

from vramtop.monitor.fleet.fleet import SCHEMA, FleetGpu, FleetPending, FleetProcess, HostReading, RankFacts

TEXT = (Path(__file__).parents[3] / "docs" / "reference" / "stream.md").read_text()
RECORDS = {
    "A line": HostReading,
    "A GPU, and a MIG device of one": FleetGpu,
    "A process on a GPU": FleetProcess,
    "Facts about a rank": RankFacts,
    "A pending job": FleetPending,
}


@pytest.mark.parametrize("heading", RECORDS)
def test_the_table_lists_the_fields(heading: str) -> None:
    section = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    expected = set(RECORDS[heading].__struct_fields__) | ({"schema"} if heading == "A line" else set())
    assert len(listed) == len(set(listed))
    assert set(listed) == expected


def test_the_schema_is_the_one_that_is_written() -> None:
    assert schema("stream")["properties"]["schema"]["const"] == SCHEMA
