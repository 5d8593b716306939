"""MIG devices on the dashboard, in the process table and in ``vramtop --once``: own rows, memory counted once."""

import time
from typing import Any

import psutil
import pytest
from builders import ScriptedSource, make_gpu, make_mig_gpu, make_process, make_run, make_snapshot, make_watchlist
from command_line import vramtop
from json_schemas import valid_json
from rich.cells import cell_len
from screen_host import app_of, on_first_board, screen_lines
from slow_cases import first_quick

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.figures import Fault
from vramtop.monitor.snapshot.snapshot import GpuReading
from vramtop.tui.cli.commands import attach, once
from vramtop.tui.screens.dashboard.gpu_panel import GpuPanel
from vramtop.tui.screens.dashboard.gpu_rows import GpuRows, gpu_name_width, gpu_row_line
from vramtop.tui.screens.dashboard.process_rows import in_order, matching, table_rows

TUNE = Job(name="tune", model=ModelSpec(id="gpt2"))


def mig_gpu(index: int = 0, **changes: Any) -> GpuReading:
    """A GPU with 8 and 2 GiB in two compute instances, 12 in another GPU instance, and 1 and 1 unattributed."""
    base = 10 * index
    inside = [
        make_process(base + 1, 8, gpu_instance=3, compute_instance=0),
        make_process(base + 2, 2, gpu_instance=3, compute_instance=1),
        make_process(base + 3, 12, gpu_instance=9, compute_instance=0),
    ]
    facts = {"used_bytes": 24 * GIB, "utilisation_percent": None}
    return make_mig_gpu(index, inside, free=(29, 8), **(facts | changes))


def tuned() -> Watchlist:
    """Process 3 runs a job of 18 GiB."""
    return make_watchlist(make_run(TUNE, 3), device=18)


@pytest.mark.parametrize("size", first_quick([(80, 24), (100, 26)]))
async def test_every_device_has_a_line_below_its_gpu(size: tuple[int, int]) -> None:
    app = app_of([make_snapshot([mig_gpu(), make_gpu(1)])], tuned())
    async with on_first_board(app, size):
        lines = screen_lines(app)
        assert all(cell_len(line) == size[0] for line in lines)
        table = app.screen.query_one(GpuRows)
        listed = [table.cells_of(row).plain for row in table.rows]
        assert [line[1:].split("  ")[0].split("█")[0].split("'")[0].strip() for line in listed] == [
            "0",
            "0:3:0 1c.3g.40gb",
            "0:3:1 2c.3g.40gb as 0:3:0",
            "0:9 1g.20gb",
            "1",
        ]
        assert "24.0/80.0" in listed[0]
        assert "MIG, 3 devices" in listed[0]
        assert "11.0/40.0   29.0" in listed[1]
        assert "40.0" not in listed[2]
        assert "shared" in listed[2]
        assert "12.0/20.0    8.0" in listed[3]
        assert "… warming up   −6.0" in listed[3]  # its job's 12 of 18 GiB
        assert listed[3].startswith("▶")  # the device with the job, not its GPU
        opened = app.screen.query_one("#open", GpuPanel).shown.plain
        assert "0:9 MIG 1g.20gb of" in opened
        assert f"12.0 of 20.0 GiB{' in use' * (size[0] > 80)} (60 %) · free 8.0" in opened


async def test_panels_use_the_scale_of_the_device() -> None:
    app = app_of([make_snapshot([mig_gpu()])], tuned())
    async with on_first_board(app, (120, 50)):
        panels = [panel.shown.plain.splitlines() for panel in app.screen.query("#panels GpuPanel").results(GpuPanel)]
        assert [lines[0].split("of H100")[0].split("H100")[0] for lines in panels] == [
            "── 0 ",  # without a job: no frame
            "── 0:3:0 MIG 1c.3g.40gb ",
            "── 0:3:1 MIG 2c.3g.40gb ",
            "┌─ 0:9 MIG 1g.20gb ",
        ]
        assert "in MIG mode: programs run on its 3 MIG devices" in panels[0][1]
        assert "11.0 of 40.0 GiB in use (28 %), shared · free 29.0" in panels[1][0]
        assert "11.0 of 40.0 GiB in use, shared with 0:3:0 · free 29.0" in panels[2][0]
        assert "shares the memory of 0:3:0; of that train.py 2.0" in panels[2][1]
        held, budget = panels[3][1], panels[3][2]
        device = list(app.screen.query("#panels GpuPanel").results(GpuPanel))[3].lines
        painted = [span for span in device[1].spans if " on #" in str(span.style)]
        width = held.rindex("▏") - painted[0].start
        assert painted[-1].end - painted[0].start == round(12 * width / 20)
        assert "18.0 GiB (16.9 to 19.1)" in budget
        assert not any("weights" in line for lines in panels[:3] for line in lines)
        assert "util n/a ─" in panels[3][0]  # no power and temperature: they belong to the whole GPU
        assert all(cell_len(line) == 120 for lines in panels for line in lines)


def test_table_names_the_instance_and_its_rows_add_up() -> None:
    board = tuned().update(make_snapshot([mig_gpu()]))
    rows = table_rows(board)
    said = [(row.cells["PID"].text, row.cells["GPU"].text, row.cells["VRAM GiB"].text) for row in rows]
    assert said == [
        ("1", "0:3:0", "8.0"),
        ("2", "0:3:1", "2.0"),
        ("3", "0:9", "12.0"),
        ("-", "0", "1.0"),
        ("-", "0:3:0", "1.0"),
    ]
    assert sum(float(size) for *_, size in said) == 24.0
    assert rows[2].cells["DIFF"].text == "−6.0"
    assert [row.cells["PID"].text for row in matching(rows, "gpu0:3:1")] == ["2"]
    assert len(matching(rows, "gpu0")) == 5


def test_rows_sorted_by_gpu_are_below_it_whatever_is_known() -> None:
    gpu = make_mig_gpu(0, [make_process(7, 0), make_process(8, None, gpu_instance=0, compute_instance=0)])
    zero = replace(gpu, mig=(replace(gpu.mig[0], gpu_instance=0), *gpu.mig[1:]))
    rows = in_order(table_rows(tuned().update(make_snapshot([zero, make_mig_gpu(1)]))), "GPU")
    assert [row.cells["GPU"].text for row in rows] == ["0", "0:0", "0:0", "0:3:1", "0:9", "1:3:0", "1:9"]


def test_one_pid_in_two_instances_has_two_rows() -> None:
    twice = [make_process(7, 1, gpu_instance=3), make_process(7, 2, gpu_instance=9)]
    rows = table_rows(tuned().update(make_snapshot([make_mig_gpu(0, twice, free=(39, 18))])))
    held = [row for row in rows if row.row]
    assert [row.cells["GPU"].text for row in held] == ["0:3:0", "0:9"]
    assert len({row.key for row in held}) == 2


def test_a_device_of_unknown_memory_shows_the_reason_and_its_gpu_keeps_its_figures() -> None:
    fault = Fault(field="mig", code="NO_PERMISSION", message="this user may not read it")
    gpu = mig_gpu(faults=(fault,))
    unread = replace(
        gpu, mig=tuple(replace(each, total_bytes=None, used_bytes=None, free_bytes=None) for each in gpu.mig)
    )
    shown = tuned().update(make_snapshot([unread])).displayed_gpus
    lines = [gpu_row_line(each, 120, names=gpu_name_width(shown), selected=False).plain for each in shown]
    assert "24.0/80.0" in lines[0]
    assert "n/a: this user may not read" in lines[1]
    assert "n/a/n/a" in lines[1]
    assert "train.py 1 +1" in lines[1]


def test_once_prints_the_fault_of_a_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = mig_gpu()
    less = replace(gpu, mig=tuple(replace(each, used_bytes=GIB) for each in gpu.mig))
    monkeypatch.setattr(once, "NvmlSource", lambda **_: ScriptedSource([make_snapshot([less], time=time.time())]))
    told = [line for line in vramtop("--once", code=0).out.splitlines() if "add up to" in line]
    assert [line.partition(": the ")[0] for line in told] == ["GPU 0:3:0", "GPU 0:9"]


def test_once_prints_a_line_for_each_device_and_json_has_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = make_snapshot([mig_gpu(), make_gpu(1)], time=time.time())
    monkeypatch.setattr(once, "NvmlSource", lambda **_: ScriptedSource([snapshot]))
    lines = vramtop("--once", code=0).out.splitlines()
    assert [" ".join(line.split()) for line in lines if line.startswith("GPU")] == [
        "GPU 0 NVIDIA H100 80GB HBM3 24.0 of 80.0 GiB in use 56.5 free util n/a 412 W 63 C",
        "GPU 0:3:0 MIG 1c.3g.40gb 11.0 of 40.0 GiB in use 29.0 free",
        "GPU 0:3:1 MIG 2c.3g.40gb, memory of 0:3:0",
        "GPU 0:9 MIG 1g.20gb 12.0 of 20.0 GiB in use 8.0 free",
        "GPU 1 NVIDIA H100 80GB HBM3 1.0 of 80.0 GiB in use 78.5 free util 98 % 412 W 63 C",
    ]
    assert any(" ".join(line.split()).startswith("pid 2 ana GPU 0:3:1 2.0 GiB") for line in lines)
    first, second = valid_json("once", vramtop("--once", "--json", code=0).out)["gpus"]
    assert second["mig"] is None
    assert [(each["label"], each["shares_memory_of"], each["pids"]) for each in first["mig"]] == [
        ("0:3:0", None, [1, 2]),
        ("0:3:1", "0:3:0", [2]),
        ("0:9", None, [3]),
    ]
    assert first["mig"][2]["used_bytes"] + first["mig"][2]["free_bytes"] == first["mig"][2]["total_bytes"] == 20 * GIB
    own = [each for each in first["mig"] if each["shares_memory_of"] is None]
    assert sum(each["used_bytes"] for each in own) == 23 * GIB
    assert [(each["pid"], each["gpu_instance"], each["compute_instance"]) for each in first["processes"]] == [
        (1, 3, 0),
        (2, 3, 1),
        (3, 9, 0),
    ]


def test_attach_names_the_instance_that_a_process_runs_in(monkeypatch, start_script) -> None:
    process = start_script("--model_name_or_path", "Qwen/Qwen2.5-0.5B")
    start_time = psutil.Process(process.pid).create_time()
    mine = make_process(process.pid, 12, start_time=start_time, gpu_instance=9, compute_instance=0)
    snapshot = make_snapshot([make_mig_gpu(0, [mine], free=(39, 7))], time=time.time())
    monkeypatch.setattr(attach, "NvmlSource", lambda: ScriptedSource([snapshot]))
    lines = vramtop("attach", str(process.pid), code=3).out.splitlines()
    assert ["-", str(process.pid), "0:9", "12.0", "NVML"] in [line.split() for line in lines]
