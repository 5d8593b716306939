"""What the probe reports of a program's optimizers, in real loops with torch."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from waiting import until

from vramtop.monitor.probe.launch import probed_environment
from vramtop.monitor.probe.probe_reader import OptimizerFacts, ProbeReader, ProbeSample, parse_sample

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
MODEL = """
    import sys, time
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 4))
    model[0].requires_grad_(False)
    def train(*steps):
        for _ in range(3):
            model(torch.randn(8, 64)).sum().backward()
            for step in steps:
                step()
            model.zero_grad()
        print("trained", flush=True)
"""
Run = Callable[[str], ProbeSample]


@pytest.fixture
def run(tmp_path: Path, start_python: Callable[..., Any]) -> Run:
    """Run code after MODEL under the probe, and return what its optimizers report."""

    def start(code: str) -> ProbeSample:
        text = textwrap.dedent(MODEL) + textwrap.dedent(code) + "\ntime.sleep(60)\n"
        environ = probed_environment({**os.environ, "OMP_NUM_THREADS": "1"})
        process = start_python(text, env=environ, cwd=tmp_path)
        assert process.stdout.readline() == "trained\n"
        reader, found = ProbeReader(process.pid), list[ProbeSample]()

        def published() -> bool:
            sample = reader.read()
            found.extend([sample] if sample is not None and sample.optimizers else [])
            return bool(found)

        until(published)
        return found[0]

    return start


@pytest.mark.slow
def test_an_own_loops_optimizer_reports_what_it_trains(run: Run) -> None:
    (adamw,) = run("train(torch.optim.AdamW(model.parameters(), amsgrad=True).step)").optimizers
    assert adamw.name == "torch.optim.adamw.AdamW"
    assert (adamw.options["amsgrad"], adamw.options["fused"]) == (True, None)
    trained = 64 * 4 + 4
    assert (adamw.trained, adamw.sharded) == ({"float32": trained}, None)


@pytest.mark.slow
def test_several_optimizers_are_told_apart_and_those_alike_are_one(run: Run) -> None:
    code = """
        optimizers = [torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model[1].parameters()]
        lion = torch.optim.Adagrad([torch.nn.Parameter(torch.ones(7, dtype=torch.float64))])
        lion.param_groups[0]["params"][0].grad = torch.ones(7, dtype=torch.float64)
        train(*(each.step for each in optimizers), lion.step)
    """
    found = {each.name.rpartition(".")[2]: each for each in run(code).optimizers}
    assert found["SGD"].trained == {"float32": 64 * 4 + 4}
    assert found["Adagrad"].trained == {"float64": 7}


@pytest.mark.slow
def test_a_users_own_optimizer_and_its_hooks_are_left_alone(run: Run) -> None:
    code = """
        from torch.optim.optimizer import register_optimizer_step_post_hook
        class Odd(torch.optim.Optimizer):
            def __init__(self, params):
                super().__init__(params, {"lr": 1.0, "name": "token-\\x1b[31m"})
            def step(self, closure=None):
                for group in self.param_groups:
                    for p in group["params"]:
                        self.state[p] = [1, 2]  # no dictionary
                return "result"
        seen = []
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: seen.append(type(optimizer).__name__))
        odd = Odd(model[1].parameters())
        train(odd.step)
        assert seen == ["Odd"] * 3 and odd.step() == "result"
    """
    (odd,) = run(code).optimizers
    assert (odd.name, odd.options) == ("__main__.Odd", {"lr": 1.0})


@pytest.mark.slow
def test_a_compiled_step_is_compiled_as_without_the_probe(tmp_path: Path) -> None:
    code = textwrap.dedent(MODEL) + 'train(torch.compile(torch.optim.Adam(model.parameters()).step, backend="eager"))\n'
    counts = []
    for environ in (dict(os.environ), probed_environment(os.environ)):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**environ, "TORCH_LOGS": "graph_breaks,recompiles"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        counts.append((done.stderr.count("Graph break in user code"), done.stderr.count("Recompiling")))
    assert counts[0] == counts[1]


def test_what_another_users_process_publishes_is_checked() -> None:
    good = {"class": "a.B", "options": {"lr": 1, "x": "\x1b"}, "trained": {"float32": 3, "bad": -1}, "sharded": "odd"}

    def read(optimizers: object) -> tuple[OptimizerFacts, ...]:
        figures = {"pid": 1, "time": 1.0, "optimizers": optimizers}
        sample = parse_sample(json.dumps(figures).encode(), b"{}")
        return sample.optimizers

    assert read([good, {"class": "a b"}, 7, {"options": {}}, {"class": 3}]) == (
        OptimizerFacts(name="a.B", options={"lr": 1}, trained={"float32": 3}, sharded="other"),
    )
    assert read("text") == ()
    assert read([{"class": "a.B", "trained": [1], "options": "x"}])[0].trained == {}
