import json

import pytest

from vramtop.tui.cli.json_text import json_text

VALUE = {
    "numbers": list(range(500)),
    "nested": {"pairs": [["forward", 3], ["backward", 5]], "empty": {}, "none": None},
    "objects": [{"name": "ä", "sizes": []}, {"name": 'quoted "so"', "ok": True}],
}


@pytest.mark.parametrize("value", [VALUE, [], {}, 3, None, "word", [[1], [2]], [{"a": 1}]])
def test_the_text_is_valid_json(value):
    assert json.loads(json_text(value)) == value


def test_lists_of_numbers_stay_on_one_line():
    lines = json_text(VALUE).splitlines()
    assert lines[0] == "{"
    assert lines[1].startswith('  "numbers": [0, 1, 2')
    assert lines[1].endswith("499],")
    assert len(lines) < 25
