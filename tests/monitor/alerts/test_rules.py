"""The terminal's rules are those of the Prometheus file: names, severities, times and thresholds."""

import re
from pathlib import Path

import yaml

from vramtop.monitor.alerts import rules
from vramtop.monitor.export.ready_files import rules_text

_SECONDS = {"s": 1, "m": 60, "h": 3600}


def test_the_rules_are_those_of_prometheus() -> None:
    ready = {each["alert"]: each for group in yaml.safe_load(rules_text())["groups"] for each in group["rules"]}
    ready.pop("VramtopExporterDown")  # only Prometheus can tell
    assert {rule.name for rule in rules.RULES.values()} == set(ready)
    for rule in rules.RULES.values():
        duration = ready[rule.name]["for"]
        assert rule.fires_after == int(duration[:-1]) * _SECONDS[duration[-1]], rule.name
        assert rule.severity == ready[rule.name]["labels"]["severity"]
    assert re.search(r"< 4 \* 3600\b", ready["VramtopJobGrowing"]["expr"])
    assert rules.FULL_WITHIN_SECONDS == 14_400
    assert "> 2 * 1024 ^ 3" in ready["VramtopUnattributedMemory"]["expr"]
    assert rules.MIN_UNATTRIBUTED_BYTES == 2_147_483_648


def test_the_documentation_has_every_rule() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "alerts.md").read_text()
    for rule in rules.RULES.values():
        (row,) = re.findall(rf"^\| `{rule.name}` \|.*$", text, re.MULTILINE)
        times = [f"{seconds // 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s" for seconds in
                 (rule.fires_after, rule.clears_after)]  # fmt: skip
        assert [cell.strip() for cell in row.split("|")[3:6]] == [*times, rule.severity]
