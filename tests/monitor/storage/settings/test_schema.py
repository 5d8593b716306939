import re
from typing import get_args

import pytest

from vramtop.monitor.storage.settings.schema import (
    PROCESS_COLUMNS,
    PROCESS_SORTS,
    PROCESS_VIEWS,
    SETTINGS,
    TABLES,
    Setting,
    nearest_name,
)
from vramtop.tui.screens.dashboard.process_columns import COLUMNS, ColumnName
from vramtop.tui.screens.dashboard.process_rows import SortKey
from vramtop.tui.screens.dashboard.table_view import ViewName

BY_NAME = {setting.name: setting for setting in SETTINGS}
named = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)


@named
def test_a_setting_allows_its_default_and_says_what_it_does(setting: Setting) -> None:
    assert setting.checked(setting.default) == setting.default
    assert setting.about[0].isupper()
    assert not setting.about.endswith(".")
    assert setting.table in TABLES


def test_words_are_those_of_the_program() -> None:
    assert get_args(ViewName) == PROCESS_VIEWS
    assert get_args(SortKey) == PROCESS_SORTS
    assert get_args(ColumnName) == PROCESS_COLUMNS
    assert tuple(column.name for column in COLUMNS) == PROCESS_COLUMNS, "a column is named in all three"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("dashboard.interval", "fast", "give a number between 0.1 and 86400"),
        ("dashboard.interval", 0, "between 0.1"),
        ("dashboard.interval", True, "a number"),
        ("dashboard.interval", float("nan"), "a number"),
        ("dashboard.mouse", "yes", "true or false"),
        ("dashboard.view", "list", '"runs", "tree", "processes"'),
        ("dashboard.columns", ["PID", "NO"], '"NO" is wrong; give a list of'),
        ("dashboard.theme", "a\nb", "the name of a theme"),
        ("prometheus.url", "prometheus:9090", "http://"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(name: str, value: object, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        BY_NAME[name].checked(value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("dashboard.interval", "2", 2.0),
        ("dashboard.mouse", "Off", False),
        ("dashboard.mouse", "1", True),
        ("dashboard.columns", "PID, USER", ("PID", "USER")),
        ("dashboard.columns", "", ()),
        ("estimates.method", "exact", "exact"),
    ],
)
def test_texts_of_the_environment_mean_values(name: str, text: str, value: object) -> None:
    assert BY_NAME[name].parsed(text) == value


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("dashboard.intervall", "dashboard.interval"),
        ("theme", "dashboard.theme"),
        ("read-only", "dashboard.read_only"),
        ("ui.columns", "dashboard.columns"),
        ("zzz", None),
    ],
)
def test_a_wrong_name_has_a_near_one(wrong: str, meant: str | None) -> None:
    assert nearest_name(wrong) == meant
