"""``--python PATH`` names the interpreter that traces: it does, or the answer says why not."""

import sys

import pytest
from json_schemas import valid_json

from vramtop.estimator.estimation import UNTRACED
from vramtop.tui.cli.main import main


def test_a_named_python_traces_or_the_answer_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("estimate", "gpt2", "--sequence-length", "64", "--gpu-type", "h100", "--python", sys.executable)
    assert main([*words, "--json"]) == 0
    found = valid_json("estimate", capsys.readouterr().out)
    assert (found["method"], [each for each in found["warnings"] if each.startswith(UNTRACED)]) == ("traced", [])

    assert main([*words, "--set", "parallel.pipeline=2", "--json"]) == 0
    found = valid_json("estimate", capsys.readouterr().out)
    assert found["method"] == "exact"
    assert any(
        each.startswith(f"{UNTRACED}no program can be written for this job yet: it splits stages")
        for each in found["warnings"]
    )
    assert not any(each.startswith(UNTRACED) for each in found["assumptions"])

    assert main([*words, "--method", "exact", "--json"]) == 0
    assert valid_json("estimate", capsys.readouterr().out)["method"] == "exact"
