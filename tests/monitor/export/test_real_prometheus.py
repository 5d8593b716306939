"""A real Prometheus that scrapes three exporters: which alerts fire, and what Grafana would ask it."""

import json
import re
import signal
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from exporter import needs
from prometheus_server import Prometheus, free_port
from waiting import until

from vramtop.monitor.export.metrics import dashboard_text, rules_text

pytestmark = [pytest.mark.slow, needs("prometheus")]
SLEEPS = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"
_WIDTHS = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 1000}
TINY = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, **_WIDTHS}
MAY_BE_EMPTY = {"vramtop_gpu_memory_anomalous_bytes"}
"""Metrics of which this machine has none."""


@pytest.fixture
def prometheus(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Prometheus]:
    def start(*jobs: dict[str, Any]) -> Prometheus:
        (tmp_path / "rules.yml").write_text(re.sub(r"for: \d+m", "for: 0s", rules_text()))
        each_second = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        settings = {"global": each_second, "rule_files": ["rules.yml"], "scrape_configs": list(jobs)}
        started = Prometheus(tmp_path, settings)
        request.addfinalizer(started.stop)
        return started

    return start


@pytest.fixture
def training(start, script, flags, tmp_path: Path) -> Callable[[], int]:
    """Start a training process that sleeps; returns its pid."""
    name = script(SLEEPS)
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(TINY))
    environ = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "node01", "MASTER_PORT": "29500"}
    return lambda: start([sys.executable, name, *flags()], **environ)  # type: ignore[no-any-return]


def _values(server: Prometheus, expression: str) -> dict[str, float]:
    return {each["metric"].get("instance", ""): float(each["value"][1]) for each in server.query(expression)}


def test_rules_fire_and_grafanas_queries_have_answers(export, prometheus, training, tmp_path: Path) -> None:
    began = time.time()
    over, growing, large = training(), training(), tmp_path / "large.toml"
    large.write_text('name = "large"\n[model]\nid = "meta-llama/Llama-3.1-70B"\n')
    names = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    quick = ("--json", "--interval", "0.2", "--no-history")
    machine = [{"used_gib": 79, "processes": {over: 78}}, {"used_gib": 41, "processes": {growing: 40}}]
    busy = export("--listen", names[0], *quick, "--job", str(large), gpus=machine, environ={"CLOCK_SPEED": "30"})
    lost = [{"used_gib": 20, "processes": {}}, {"used_gib": 1, "processes": {}, "lost": True}]
    idle = export("--listen", names[1], *quick, "--no-attach", gpus=lost).started()
    export("--listen", names[2], *quick, "--no-attach", gpus=[{"used_gib": 1, "processes": {}}]).started()
    busy.started()
    server = prometheus({"job_name": "vramtop", "static_configs": [{"targets": names}]})
    until(lambda: _values(server, "vramtop_sampler_up") == dict.fromkeys(names, 1))

    steps = count(40)

    def is_growing() -> bool:
        """Let a process grow for as long as it takes to be noticed."""
        machine[1] = {"used_gib": (used := 40 + next(steps) % 3600 / 100) + 1, "processes": {growing: used}}
        busy.show(machine)
        return ("VramtopJobGrowing", names[0]) in server.firing()

    def ranks() -> set[tuple[str, str]]:
        """Return pid and run of each rank; none in a second in which the exporter did not answer in time."""
        found = server.query('vramtop_process_run_info{rank="0", world_size="1", master="node01:29500"}')
        return {(each["metric"]["pid"], each["metric"]["run"]) for each in found}

    until(lambda: ("VramtopJobOverBudget", names[0]) in server.firing())
    until(is_growing, seconds=180)
    until(lambda: ranks() == {(str(over),) * 2, (str(growing),) * 2})
    fire = {("VramtopUnattributedMemory", names[1]), ("VramtopGpuLost", names[1])}
    until(lambda: fire <= server.firing())
    until(lambda: not any(instance == names[2] for _, instance in server.firing()))
    idle.show(None)
    until(lambda: ("VramtopSamplerStale", names[1]) in server.firing())
    until(lambda: names[1] not in _values(server, "vramtop_gpu_memory_free_bytes"))
    busy.end(signal.SIGKILL)
    until(lambda: ("VramtopExporterDown", names[0]) in server.firing())
    _ask_what_grafana_asks(server, began, time.time(), names)


def _ask_what_grafana_asks(server: Prometheus, began: float, ended: float, names: list[str]) -> None:
    """Every query of every panel runs, over the time of the test, and has series; so have the variables."""
    dashboard = json.loads(dashboard_text())
    empty = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$instance", ".*").replace("$job_name", ".*")
            if not server.range(query, began, ended):
                empty.add(query.partition("{")[0])
    assert empty <= MAY_BE_EMPTY
    loaded = {rule["name"] for group in server.get("rules")["groups"] for rule in group["rules"]}
    assert loaded == set(re.findall(r"alert: (\w+)", rules_text()))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            found = server.get(f"label/{label}/values", **{"match[]": metric})
            assert set(found) == (set(names) if label == "instance" else {"tiny"}), variable["name"]
