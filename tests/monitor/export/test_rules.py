"""The alerting rules and the Grafana dashboard: every metric in them exists, and each alert fires when it should."""

import json
import re
import subprocess
from pathlib import Path

import yaml
from exporter import needs, program

from vramtop.monitor.export.metrics import TABLE, dashboard_text, rules_text

ALERTS = {
    "VramtopJobOverBudget",
    "VramtopJobGrowing",
    "VramtopUnattributedMemory",
    "VramtopGpuLost",
    "VramtopSamplerStale",
    "VramtopExporterDown",
}


def _metrics(text: str) -> set[str]:
    """Names of metrics, which are not followed by an operator of label matching."""
    return set(re.findall(r"\b(vramtop_\w+)\b(?!\s*(?:=|!=|\)|\}\}))", text))


def test_rules_and_dashboard_use_metrics_that_exist() -> None:
    names = {metric.name for metric in TABLE}
    rules = [rule for group in yaml.safe_load(rules_text())["groups"] for rule in group["rules"]]
    assert {rule["alert"] for rule in rules} == ALERTS
    panels = json.loads(dashboard_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(queries) > 20
    for query in (*(rule["expr"] for rule in rules), *queries):
        assert _metrics(query) <= names, query
        assert _metrics(query) or "up{" in query


@needs("promtool")
def test_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    rules, tests = tmp_path / "rules.yml", tmp_path / "tests.yml"
    rules.write_text(rules_text())
    text = Path(__file__).with_name("rules_test.yml").read_text()
    assert set(re.findall(r"alertname: (\w+)", text)) == ALERTS
    tests.write_text(text.replace("RULES", str(rules)))
    for words in (("check", "rules", rules), ("test", "rules", tests)):
        done = subprocess.run([program("promtool"), *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
