"""Hosts from a real Prometheus that scrapes real exporters, one of which dies and comes back."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from exporter import Exporter, exporters, needs
from json_schemas import valid_json
from prometheus_server import Prometheus, free_port
from waiting import until

from vramtop.monitor.fleet.prometheus.client import PrometheusClient
from vramtop.monitor.fleet.prometheus.prometheus_fleet import PrometheusFleet
from vramtop.tui.cli.main import main

pytestmark = [pytest.mark.slow, needs("prometheus")]
GIB = 2**30


@pytest.fixture
def export(tmp_path: Path) -> Iterator[Callable[[str, float], Exporter]]:
    with exporters(tmp_path) as start:

        def with_two_gpus(name: str, used_gib: float) -> Exporter:
            gpus = [{"used_gib": used_gib, "processes": {}, "uuid": f"GPU-{name}-{at}"} for at in range(2)]
            return start("--listen", name, "--json", "--no-attach", "--interval", "0.5", gpus=gpus)

        yield with_two_gpus


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Prometheus, list[str]]]:
    names = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    every = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    configuration = {
        "global": every,
        "scrape_configs": [{"job_name": "vramtop", "static_configs": [{"targets": names}]}],
    }
    prometheus = Prometheus(tmp_path, configuration)
    yield prometheus, names
    prometheus.stop()


def test_a_host_that_dies_is_silent_without_figures_and_comes_back(server, export, capsys) -> None:
    prometheus, names = server
    exporters = [export(name, used).started() for name, used in zip(names, (10, 20, 30), strict=True)]
    source = PrometheusFleet(PrometheusClient(prometheus.url))

    def used() -> dict[str, int | None]:
        return {host.host: host.gpus[0].used_bytes for host in source.read().hosts if host.is_live}

    def address(at: int) -> str:
        (name,) = [host for host in used() if names[at] in host]  # they share this machine's name
        return name

    def restarted() -> None:
        nonlocal source
        source = PrometheusFleet(PrometheusClient(prometheus.url))

    def all_there() -> bool:
        restarted()  # it looks for exporters once a minute
        return sorted(used().values()) == [10 * GIB, 20 * GIB, 30 * GIB]  # type: ignore[type-var]

    until(all_there)
    dead = address(1)
    exporters[1].end(signal.SIGKILL)
    until(lambda: dead not in used())
    fleet = source.read()
    (gone,) = [host for host in fleet.hosts if host.host == dead]
    assert (gone.state, gone.reason) == ("silent", "Prometheus cannot scrape its exporter")
    assert fleet.totals.silent_hosts == 1
    assert fleet.totals.gpus.used_bytes == 2 * (10 + 30) * GIB
    fresh = PrometheusFleet(PrometheusClient(prometheus.url)).read()  # another vramtop that never saw it alive
    (unseen,) = [host for host in fresh.hosts if host.state == "silent"]
    assert (unseen.gpus, unseen.reason) == ((), "Prometheus cannot scrape its exporter")
    assert (fresh.age_seconds(unseen) or 0) < 600
    capsys.readouterr()
    assert main(["--prometheus", prometheus.url, "--once", "--json"]) == 0
    states = [host["state"] for host in valid_json("once-hosts", capsys.readouterr().out)["hosts"]]
    assert sorted(states) == ["live", "live", "silent"]
    export(names[1], 25).started()
    until(lambda: used().get(dead) == 25 * GIB)
    assert source.read().totals.silent_hosts == 0


def test_a_prometheus_without_gpus_is_a_sentence(server, capsys) -> None:
    prometheus, _ = server
    assert main(["--prometheus", prometheus.url, "--once"]) == 3
    assert "has no metrics of vramtop export or dcgm-exporter" in capsys.readouterr().err
