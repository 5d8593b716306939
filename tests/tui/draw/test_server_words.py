"""Servers' budgets have words of their own: a KV cache in place of activations."""

import pytest
from builders import make_board, make_budget, make_gpu, make_process, make_run

from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Inference, ModelSpec, Training
from vramtop.tui.draw.gpu_bars import budget_cells
from vramtop.tui.draw.palette import COMPONENTS, component_mark


def server(share: float) -> Job:
    training = Training(mode="inference", precision="bf16", sequence_length=1024)
    return Job(
        model=ModelSpec(id="gpt2"), training=training, inference=Inference(engine="vllm", gpu_memory_utilization=share)
    )


def test_only_servers_have_a_cache() -> None:
    served, trained = estimate(server(0.5)), make_budget()
    assert component_mark("activations", served).word == "KV cache"
    assert component_mark("weights", served) == COMPONENTS["weights"]
    assert component_mark("activations", trained) == COMPONENTS["activations"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_bars_of_servers_show_their_cache(jobs: int) -> None:
    runs = [make_run(server(0.3 + pid / 100), pid) for pid in range(1, jobs + 1)]
    processes = [make_process(pid, 20) for pid in range(1, jobs + 1)]
    (gpu,) = make_board([make_gpu(0, processes)], *runs, estimate=estimate).gpus
    cells = budget_cells(gpu, 80)
    assert cells is not None
    assert "KV cache" in "".join(cell.char for cell in cells)
