"""A suite (``make gpu``): the table, the rows that are kept, and what is measured again."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from suite import chosen_parts, main, read_suite

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.sizes import GIB

ALL = '{ rank = 4, targets = "all-linear" }'
TABLE = """
[job.training]
precision = "bf16"
[models.small]
id = "gpt2"
[[part]]
name = "steps"
jobs = [
    { model = "small", training = { micro_batch = 4, sequence_length = 64, optimizer = "adamw-8bit" } },
    { model = "small", attention = "eager", training = { micro_batch = 2, sequence_length = 32 }, lora = ALL },
]
[[part]]
name = "others"
programs = [{ name = "says", file = "says.py", arguments = ["--much"], seconds = 20 }]
""".replace("ALL", ALL)
EIGHT, EAGER = "small b4 s64 bf16 adamw-8bit", "small b2 s32 eager lora bf16 rank 4 all-linear"
SAYS = """
import json, os, sys
print(json.dumps({"name": "arguments", "given": sys.argv[1:], "torch": bool(os.environ["VRAMTOP_TORCH_PYTHON"])}))
print("not JSON")
print('{"name": ' + "[" * 5000)
sys.exit("it breaks here")
"""
VRAMTOP = f"""#!{sys.executable}
import json, sys, tomllib
if "--once" in sys.argv:
    print(json.dumps({{"gpus": [{{"name": "NVIDIA H100 80GB HBM3"}}], "source": {{"driver_version": "580.95"}}}}))
    sys.exit()
job = tomllib.load(open(sys.argv[2], "rb"))
full = job["training"]["micro_batch"] == 4
step = {{"max_allocated_bytes": {2 * GIB}, "out_of_memory": {{"phase": "forward"}} if full else None}}
error = "out of memory" if full else None
measured = {{"measured": step, "predicted": None, "job": job, "card": "NVIDIA H100 80GB HBM3", "error": error}}
print(json.dumps(measured))
sys.exit(full)
"""
"""In the place of vramtop, on a machine with a GPU."""
pytestmark = pytest.mark.slow
Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "says.py").write_text(SAYS)
    (tmp_path / "suite.toml").write_text(TABLE)
    return tmp_path / "suite.toml"


@pytest.fixture
def run(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return exit code, rows by name and what was printed."""

    def run_suite(*words: str) -> tuple[int, dict[str, Any], str]:
        out = tmp_path / "results.json"
        code = main([str(table), "--out", str(out), *words])
        rows = json.loads(out.read_text())["rows"] if out.exists() else []
        return code, {row["name"]: row for row in rows}, "".join(capsys.readouterr())

    return run_suite


@pytest.fixture
def with_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vramtop").write_text(VRAMTOP)
    (tmp_path / "vramtop").chmod(0o755)
    monkeypatch.setattr("suite.VRAMTOP", str(tmp_path / "vramtop"))


def test_jobs_have_their_tables_settings_and_names_that_say_them(table: Path) -> None:
    steps, others = read_suite(table)
    assert [entry.name for entry in steps.entries] == [EIGHT, EAGER]
    assert steps.entries[0].job["training"]["precision"] == "bf16"
    assert steps.entries[1].job["model"]["attention"] == "eager"
    assert chosen_parts((steps, others), ["2", "steps"]) == (others, steps)
    assert chosen_parts((steps, others), []) == (steps, others)
    table.write_text(TABLE.replace("seconds", "minutes"))
    with pytest.raises(InputError, match="not a suite"):
        read_suite(table)


def test_a_suite_on_the_cpu_measures_what_is_predicted_and_keeps_what_programs_print(run: Run) -> None:
    code, rows, _ = run("--cpu")
    assert code == 0
    ran, says = rows[EAGER], rows["says"]
    step, told = ran["measured"]["measured"], ran["measured"]["predicted"]
    assert (ran["error"], ran["measured"]["device"], told["method"]) == (None, "cpu", "traced")
    assert told["allocated_bytes"] == pytest.approx(step["max_allocated_bytes"], rel=0.1)
    assert says["error"] == "it ended with code 1: it breaks here"
    given, other, deep = says["figures"]
    assert given == {"name": "arguments", "given": ["--much", "--cpu"], "torch": True}
    assert "not JSON" in other["error"]
    assert "not a JSON object" in deep["error"]


@pytest.mark.usefixtures("with_gpu")
def test_results_of_a_gpu_are_gone_on_with(run: Run, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, rows, _ = run("--part", "steps")
    assert (code, rows[EIGHT]["error"], rows[EAGER]["error"]) == (0, "out of memory", None)
    assert rows[EAGER]["formula"]["allocated_bytes"] > 0
    assert rows[EAGER]["measured"]["job"]["software"]["torch"]  # predictions are about what runs
    assert "steps: 2 rows, 2 of them measured before" in run()[2]
    assert main([str(table), "--part", "steps"]) == 0
    [path] = table.parent.glob("h100-80gb-hbm3-*.json")
    yesterday = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86_400))
    path.rename(path.with_name(f"h100-80gb-hbm3-{yesterday}.json"))  # it was begun before midnight
    assert main([str(table), "--part", "steps"]) == 0
    assert "2 of them measured before" in capsys.readouterr().out


def test_results_of_another_card_or_no_results_are_not_overwritten(run: Run, tmp_path: Path) -> None:
    other = {"card": "NVIDIA A100", "driver": None, "started": "", "versions": {}, "rows": []}
    for text in ("{}", json.dumps(other)):
        (tmp_path / "results.json").write_text(text)
        assert main([str(tmp_path / "suite.toml"), "--cpu", "--out", str(tmp_path / "results.json")]) == 2
        assert (tmp_path / "results.json").read_text() == text


def test_a_program_that_hangs_is_ended_with_its_children_and_its_figures_stay(table, run, tmp_path) -> None:
    table.with_name("says.py").write_text(
        "import pathlib, subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        'print(\'{"name": "first"}\', flush=True)\ntime.sleep(600)\n'
    )
    table.write_text(TABLE.replace("seconds = 20", "seconds = 2"))
    code, rows, _ = run("--cpu", "--part", "others")
    assert (code, rows["says"]["error"]) == (0, "it was killed after 2 s")
    assert rows["says"]["figures"] == [{"name": "first"}]
    status = Path("/proc", (tmp_path / "pid").read_text(), "status")
    assert not status.exists() or "\nState:\tZ" in status.read_text()


def test_what_there_is_no_time_for_is_left_and_said(table: Path, run: Run) -> None:
    table.write_text(TABLE.replace('name = "others"', 'name = "others"\nminutes = 0.2'))  # the program may take 20 s
    code, rows, printed = run("--cpu", "--part", "others")
    assert (code, rows) == (3, {})
    assert "others: no time left for 1; run the same command again to continue" in printed
