"""``vramtop history`` lists, exports and forgets; estimates are corrected unless ``--no-history`` is given."""

import time
from pathlib import Path

import pytest
from command_line import vramtop
from json_schemas import valid_json
from simulated_machine import NOW, Machine, job

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.job.job_file.load_and_save import save_job
from vramtop.monitor.history import new_measurement
from vramtop.monitor.history.history import History
from vramtop.tui.cli.commands.history import history_lines
from vramtop.tui.draw.text_output import TextOutput

TARGET = job(micro_batch=8)


@pytest.fixture(autouse=True)
def _measured_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_measurement, "machine_digest", lambda: "here")
    monkeypatch.setattr(new_measurement, "vramtop_version", lambda: "1")


@pytest.fixture
def kept() -> History:
    """Three runs in the user's history, seen today, 40 and 100 days ago."""
    machine, history = Machine(tokens=0.2), History()
    for size, days, state in ((1, 0, "steady"), (2, 40, "ended"), (4, 100, "short")):
        run = machine.run(job(micro_batch=size), state=state)
        history.add(replace(run, run=f"abcdef{size}", time=time.time() - days * 86_400 - 60))
    return history


def test_runs_are_listed_and_chosen(kept: History) -> None:
    code, out, err = vramtop("history")
    head, *rows = out.splitlines()
    assert (code, err) == (0, "")
    assert head.split()[:3] == ["RUN", "LAST", "SEEN"]
    assert [row.split()[0] for row in rows] == ["abcdef1", "abcdef2", "abcdef4"]
    assert "Llama 3.2 1B" in rows[0]
    assert "H100 80GB" in rows[0]

    def chosen(*words: str) -> list[str]:
        return [each["run"] for each in valid_json("history", vramtop("history", "--json", *words)[1])["runs"]]

    assert chosen() == ["abcdef1", "abcdef2", "abcdef4"]
    assert chosen("abcdef2") == ["abcdef2"]


def test_a_narrow_table_leaves_out_columns_and_cuts_no_figure(kept: History) -> None:
    def table(width: int) -> list[str]:
        output = TextOutput(colour_depth="none", ascii_only=True, width=width)
        return list(history_lines(kept.list(), output))

    wide, narrow = table(120), table(80)
    assert wide[0].split()[-5:] == ["SEEN", "GiB", "EXPECTED", "ERROR", "BY"]
    assert narrow[0].split()[-3:] == ["SEEN", "GiB", "ERROR"]
    assert all(len(line) <= 80 for line in narrow)
    assert all(line.endswith(" %") for line in narrow[1:])


def test_an_empty_history_says_how_it_fills() -> None:
    code, out, _ = vramtop("history")
    assert code == 0
    assert "no runs have been measured yet" in out
    assert valid_json("history", vramtop("history", "--json")[1])["runs"] == []


def test_runs_are_forgotten_one_or_all(kept: History) -> None:
    assert vramtop("history", "abcdef2", "--forget")[:2] == (0, "1 measured run forgotten\n")
    assert [each.run for each in kept.list()] == ["abcdef1", "abcdef4"]
    assert valid_json("history-forget", vramtop("history", "--forget", "--all", "--json")[1]) == {
        "schema": 1,
        "forgotten": 2,
    }
    assert kept.list() == ()


def test_bad_input_is_one_sentence_and_nothing_is_lost(kept: History) -> None:
    cases = (
        (("--forget",), "--forget needs a run of the list"),
        (("abcdef2", "--forget", "--all"), "--all forgets every run"),
        (("abcd", "--forget"), "several runs begin with abcd"),
        (("ffff", "--forget"), "there is no measured run ffff"),
        (("ffff",), "there is no measured run ffff"),
        (("x",), "x is not a run"),
    )
    for words, sentence in cases:
        code, out, err = vramtop("history", *words)
        assert (code, out) == (2, "")
        assert sentence in err
        assert err.count("\n") == 1
    assert len(kept.list()) == 3


def test_a_history_that_cannot_be_read_is_exit_code_3() -> None:
    path = History().path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"no database")
    code, out, err = vramtop("history", "--json")
    assert (code, out) == (3, "")
    assert "is damaged" in err


@pytest.mark.parametrize("command", ["estimate", pytest.param("fit", marks=pytest.mark.slow)])
def test_the_corrected_figure_is_used_and_says_so(tmp_path: Path, command: str) -> None:
    machine, history, file = Machine(tokens=0.3), History(), tmp_path / "job.toml"
    for days in (1, 2):
        history.add(replace(machine.run(TARGET), time=min(NOW, time.time() - days * 86_400)))
    save_job(TARGET, file)

    base = (command, str(file), "--method", "formula", "--gpu-type", "h100")
    plain, found = (valid_json(command, vramtop(*base, "--json", *more)[1]) for more in (("--no-history",), ()))
    words = " ".join(vramtop(*base)[1].split())
    assert "corrected: measured on this kind of card 2 times, last on " in words
    uncorrected = (plain["budget"] if command == "fit" else plain)["peak"]["device_bytes"]
    assert f"uncorrected {format_gib(uncorrected)}" in words
    if command == "fit":
        assert (plain["verdict"], found["verdict"] == "fits") == ("fits", False)  # 80 GiB, of which the job takes 80
        assert found["suggestions"]
        assert "with the correction: measured on this kind of card" in words
        plain, found = plain["budget"], found["budget"]
    assert "learned" not in plain
    assert found["peak"]["device_bytes"] > 1.1 * plain["peak"]["device_bytes"]
    assert found["learned"]["uncorrected"] == plain["peak"]
    assert found.keys() - {"learned"} == plain.keys()
    truth = machine.truth(TARGET, noisy=False).device_bytes or 0
    assert found["peak"]["low_bytes"] < truth < found["peak"]["high_bytes"]
