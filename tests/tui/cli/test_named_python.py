"""``--python PATH`` names the interpreter that traces: it does, or the answer says why not."""

import sys

from command_line import vramtop
from json_schemas import valid_json

from vramtop.estimator.estimation import UNTRACED


def test_a_named_python_traces_or_the_answer_says_why_not() -> None:
    words = ("estimate", "gpt2", "--sequence-length", "64", "--gpu-type", "h100", "--python", sys.executable)
    found = valid_json("estimate", vramtop(*words, "--json", code=0).out)
    assert (found["method"], [each for each in found["warnings"] if each.startswith(UNTRACED)]) == ("traced", [])

    found = valid_json("estimate", vramtop(*words, "--set", "parallel.pipeline=2", "--json", code=0).out)
    assert found["method"] == "exact"
    assert any(
        each.startswith(f"{UNTRACED}no program can be written for this job yet: it splits stages")
        for each in found["warnings"]
    )
    assert not any(each.startswith(UNTRACED) for each in found["assumptions"])

    assert valid_json("estimate", vramtop(*words, "--method", "exact", "--json", code=0).out)["method"] == "exact"
