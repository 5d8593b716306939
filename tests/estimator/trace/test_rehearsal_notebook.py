"""Notebooks are rehearsed cell by cell; what only IPython understands is left out and named."""

import json
import sys
from pathlib import Path

import pytest
from rehearsed import rehearse

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.trace.python_command import python_command

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("quick_rehearsals", "in_folder")

CELLS = (
    "!pip install -q torch \\\n    transformers\n%matplotlib inline\nimport torch\nfrom sizes import BATCH",
    "%%capture\nnet = torch.nn.Linear(1024, 4096).cuda()\nnet",
    "%%bash\nrm -rf everything",
    "card = !nvidia-smi\nprint(card, get_ipython())\ndisplay(net)\ntorch.zeros(2**20, device='cuda')",
    "assert _.shape == (2**20,)\noptimizer = torch.optim.AdamW(net.parameters())",
    "def train():\n    for _ in range(5):\n        net(torch.randn(BATCH, 1024).cuda()).sum().backward()\n"
    "        optimizer.step()\n        optimizer.zero_grad()\n%time train()",
)


def write(path: Path, *cells: str) -> Path:
    made = [{"cell_type": "code", "source": each, "metadata": {}, "outputs": []} for each in cells]
    path.write_text(json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def test_cells_run_in_their_folder_and_name_the_lines(tmp_path: Path) -> None:
    (tmp_path / "book").mkdir()
    (tmp_path / "book" / "sizes.py").write_text("BATCH = 64\n")
    notebook = write(tmp_path / "book" / "train.ipynb", *CELLS)
    found = rehearse([sys.executable, "book/train.ipynb"])
    assert found.answer.steps[0].steps == 3
    assert found.warnings[0] == (
        "train.ipynb: magics and shell lines were not run: !pip install -q torch (cell 1), "
        "%matplotlib inline (cell 1), %%bash (cell 3), card = !nvidia-smi (cell 4)."
    )
    lines = {each.component: each.line for each in found.budget.largest}
    assert lines["weights"] == f"{notebook} cell 2:2"
    assert f"{notebook} cell 4:4" in {each.line for each in found.budget.largest}  # IPython keeps what a cell shows


def test_a_function_that_a_notebook_launches_on_two_gpus_is_rank_0(tmp_path) -> None:
    pytest.importorskip("accelerate")
    train = """
def train(size):
    accelerator = Accelerator()
    net = torch.nn.Linear(size, size)
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
    for _ in range(5):
        accelerator.backward(net(torch.randn(8, size, device=accelerator.device)).sum())
        optimizer.step()
        optimizer.zero_grad()
"""
    imports = "import torch\nfrom accelerate import Accelerator, notebook_launcher"
    write(tmp_path / "train.ipynb", imports, train, "notebook_launcher(train, (1024,), num_processes=2)")
    found = rehearse([sys.executable, "train.ipynb"])
    assert (found.answer.world_size, found.answer.parallel.strategy) == (2, "ddp")


def test_a_notebook_that_trains_in_another_process_says_what_was_left_out(tmp_path) -> None:
    write(tmp_path / "train.ipynb", "!python train.py")
    with pytest.raises(CannotTellError, match=r"nothing to predict; .* were not run: !python train.py \(cell 1\)"):
        rehearse([sys.executable, "train.ipynb"])
    write(tmp_path / "train.ipynb", "import torch", "x = 1\nx / 0")
    with pytest.raises(CannotTellError, match=r"at train.ipynb cell 2:2: ZeroDivisionError"):
        rehearse([sys.executable, "train.ipynb"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("hello", "not a notebook: Expecting value"),
        ("{}", "it has no cells"),
        ('{"cells": [], "metadata": {"kernelspec": {"language": "julia"}}}', "a notebook in julia; expected Python"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "train.ipynb").write_text(text)
    with pytest.raises(InputError, match=sentence):
        rehearse([sys.executable, "train.ipynb"])


def test_a_notebook_has_papermills_parameters_and_what_magics_do(tmp_path) -> None:
    (tmp_path / "data").mkdir()
    net = "import sys, torch\nnet = torch.nn.Linear(int(sys.argv[1]), 8).cuda()\n"
    (tmp_path / "data" / "net.py").write_text(net)
    write(
        tmp_path / "train.ipynb",
        "BATCH = 1",
        "%%writefile sizes.py\nWIDTH = 512",
        "import asyncio\nfrom sizes import WIDTH\nawait asyncio.sleep(0)",
        '%cd "data"\n%run -i net.py 512',
        "optimizer = torch.optim.SGD(net.parameters())\nfor _ in range(3):\n"
        "    net(torch.randn(BATCH, WIDTH).cuda()).sum().backward()\n    optimizer.step()",
    )
    table = json.loads((tmp_path / "train.ipynb").read_text())
    table["cells"][0]["metadata"] = {"tags": ["parameters"]}
    (tmp_path / "train.ipynb").write_text(json.dumps(table))
    (tmp_path / "more.yaml").write_text("BATCH: 2048\n")
    (tmp_path / "papermill").write_text(f"#!{sys.executable}\n")
    found = rehearse(["./papermill", "train.ipynb", "out.ipynb", "-f", "more.yaml"])
    inputs = next(each for each in found.budget.largest if each.component == "inputs")
    assert (inputs.shape, found.answer.steps[0].steps) == ((2048, 512), 3)


def test_jupyter_without_a_notebook_is_not_rehearsed() -> None:
    with pytest.raises(InputError, match=r"names no notebook that it runs: write vramtop rehearse NOTEBOOK.ipynb"):
        python_command(["jupyter", "lab"], {})
    with pytest.raises(InputError, match=r"^absent.ipynb: no such file$"):
        python_command(["papermill", "absent.ipynb", "out.ipynb"], {})


def test_commands_that_run_another_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    line = ["nohup", "nice", "-n", "10", "env", "A=1", "timeout", "3600", sys.executable, "train.py", "--epochs", "2"]
    _, words, given = python_command(line, {}, folder=str(tmp_path))
    assert (words, given) == (["train.py", "--epochs", "2"], {"A": "1"})
    _, _, given = python_command(["nohup", "srun", "-n", "2", *line[-4:]], {}, folder=str(tmp_path))
    assert given["SLURM_NTASKS"] == "2"
