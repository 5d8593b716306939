"""A real Prometheus server on loopback, ended by its pid; its data are in a folder of the test."""

import json
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from exporter import program
from waiting import until


class Prometheus:
    """The server, started with a configuration.

    Args:
        folder: for its configuration, its data and its log.
        configuration: of ``prometheus.yml``.
    """

    def __init__(self, folder: Path, configuration: dict[str, Any]) -> None:
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(configuration))
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        self._log = (folder / "prometheus.log").open("w")
        words = [f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
        self._process = subprocess.Popen(
            [program("prometheus"), *words, "--log.level=warn"], cwd=folder, stdout=self._log, stderr=self._log
        )
        until(self._is_ready)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Series of an instant query: ``metric`` and ``value`` of each."""
        return self.get("query", query=expression)["result"]  # type: ignore[no-any-return]

    def range(self, expression: str, start: float, end: float) -> list[dict[str, Any]]:
        """Series of a query over a time, by seconds."""
        return self.get("query_range", query=expression, start=start, end=end, step=1)["result"]  # type: ignore[no-any-return]

    def firing(self) -> set[tuple[str, str]]:
        """Name and instance of each alert that fires."""
        alerts = self.get("alerts")["alerts"]
        return {
            (each["labels"]["alertname"], each["labels"]["instance"]) for each in alerts if each["state"] == "firing"
        }

    def get(self, path: str, **parameters: Any) -> Any:
        """``data`` of an answer of the API."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - our own server
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def stop(self) -> None:
        """End it."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, Path(self._log.name).read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:  # noqa: S310
                return bool(answer.status == 200)
        except OSError:
            return False


def free_port() -> int:
    """A port of loopback that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
