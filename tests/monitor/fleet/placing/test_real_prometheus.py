"""``vramtop fit`` over a real Prometheus that scrapes real exporters, one of which dies."""

import signal
from pathlib import Path
from typing import Any

import pytest
from exporter import Exporter, needs
from json_schemas import valid_json
from prometheus_server import Prometheus, free_port
from waiting import until

from vramtop.tui.cli.main import main

pytestmark = [pytest.mark.slow, needs("prometheus")]
JOB = ("gpt2", "--method", "formula", "--batch-size", "1", "--seq-len", "256")


def test_the_fullest_host_that_can_takes_the_job_until_it_dies(tmp_path: Path, capsys) -> None:
    names = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    scraped = {"job_name": "vramtop", "static_configs": [{"targets": names}]}
    every = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    prometheus = Prometheus(tmp_path, {"global": every, "scrape_configs": [scraped]})
    exporters: list[Exporter] = []
    try:
        for at, (name, used) in enumerate(zip(names, ((0, 0), (60, 78), (79, 79)), strict=True)):
            folder = tmp_path / str(at)
            folder.mkdir()
            gpus = [{"used_gib": size, "processes": {}, "uuid": f"GPU-{at}-{gpu}"} for gpu, size in enumerate(used)]
            words = ("--listen", name, "--json", "--no-attach", "--interval", "0.5")
            exporters.append(Exporter(folder, *words, gpus=gpus, environ={}).started())

        def fit() -> tuple[int, Any]:
            capsys.readouterr()
            code = main(["fit", *JOB, "--prometheus", prometheus.url, "--json"])
            out = capsys.readouterr().out
            return code, valid_json("fit-hosts", out) if out else None

        def states() -> list[tuple[str, str]]:
            _, said = fit()
            return sorted((each["state"], each["verdict"]) for each in said["hosts"]) if said else []

        until(lambda: states() == [("live", "does_not_fit"), ("live", "fits"), ("live", "fits")])
        code, said = fit()
        assert (code, said["verdict"]) == (0, "fits")
        assert said["placement"][0]["placement_uuids"] == ["GPU-1-0"]  # not the empty host, nor the GPU with 1.5 GiB
        exporters[1].end(signal.SIGKILL)
        until(lambda: ("silent", "unknown") in states())
        code, said = fit()
        assert (code, said["placement"][0]["placement_uuids"]) == (0, ["GPU-0-0"])
        exporters[0].show(None)  # its driver is gone: no figures
        until(lambda: fit()[0] == 3)
        _, said = fit()
        assert (said["verdict"], said["placement"]) == ("unknown", [])
    finally:
        for each in exporters:
            each.end()
        prometheus.stop()
