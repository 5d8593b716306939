import re
from pathlib import Path

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec, Parallel, Training
from vramtop.estimator.ray import ray_bundles

DOCS = Path(__file__).parents[3] / "docs" / "how-to" / "ray.md"
GIB = 2**30


def job(**parallel: object) -> Job:
    return Job(model=ModelSpec(id="gpt2"), training=Training(precision="bf16"), parallel=Parallel(**parallel))  # type: ignore[arg-type]


def test_each_rank_has_a_bundle_with_a_whole_gpu_and_its_ram() -> None:
    budget = estimate(job(strategy="ddp", data_replicate=4), method="formula")
    bundles = ray_bundles(budget, accelerator_type="H100", cpus=6)
    assert len(bundles) == 4
    assert budget.host is not None
    assert bundles[0] == {"CPU": 6.0, "GPU": 1.0, "memory": budget.host.high_bytes(1), "accelerator_type:H100": 0.001}


def test_ranks_that_share_a_gpu_fit_on_it_together() -> None:
    budget = estimate(job(), method="formula")
    (bundle,) = ray_bundles(budget, shared_gpu_bytes=80 * GIB)
    assert 0 < bundle["GPU"] < 1
    together = int(1 / bundle["GPU"])
    assert together > 1
    assert together * budget.peak.high_bytes <= 80 * GIB
    with pytest.raises(InputError, match=r"but the GPU has 1\.0"):
        ray_bundles(budget, shared_gpu_bytes=GIB)


@pytest.mark.slow
def test_the_documented_example_runs() -> None:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    (program,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(program.replace("ray.init()", "ray.init(num_gpus=2)"), names)  # noqa: S102 - our own documentation
    assert [bundle["GPU"] for bundle in names["bundles"]] == [1.0, 1.0]  # type: ignore[attr-defined]
    assert not ray.is_initialized()
