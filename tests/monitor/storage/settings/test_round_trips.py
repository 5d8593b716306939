"""Settings of every kind, in every way in which TOML can be written, survive changes of others."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from hypothesis import example, given, settings, strategies as st

from vramtop.monitor.storage.settings.change import change_settings
from vramtop.monitor.storage.settings.in_force import DEFAULT, settings_in_force
from vramtop.monitor.storage.settings.schema import SETTINGS, Setting, Value
from vramtop.monitor.storage.settings.settings_file import lines_of, read_toml, shown

NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,8}|[a-z ]{1,5}\.[é\"'#=\]]{1,3}", fullmatch=True)
WORDS = st.text(st.characters(categories=("L", "N", "P", "S", "Zs"), codec="utf-8"), max_size=12).filter(
    str.isprintable
)


def values_of(setting: Setting) -> st.SearchStrategy[Value]:
    match setting.kind:
        case "switch":
            return st.booleans()
        case "seconds":
            return st.integers(1, 86_400).map(float)
        case "choice":
            return st.sampled_from(setting.choices)
        case "list":
            choices = setting.choices or (("0", "2-3", "GPU-5a3f") if setting.pattern else ())
            words = st.sampled_from(choices) if choices else NAMES.filter(lambda name: "," not in name)
            return st.lists(words.map(str.strip).filter(bool), max_size=4).map(tuple)
    if setting.pattern:
        return st.just(setting.default or "http://prometheus:9090")
    return WORDS


BY_NAME = {setting.name: setting for setting in SETTINGS}
CHOSEN = st.lists(st.sampled_from(SETTINGS), max_size=6, unique_by=lambda setting: setting.name).flatmap(
    lambda chosen: st.fixed_dictionaries({setting.name: values_of(setting) for setting in chosen})
)
STYLES = st.sampled_from(("tables", "dotted", "inline"))


def written(chosen: Mapping[str, Value], style: str) -> tuple[str, list[str]]:
    """Return a file with these settings, with a comment beside and above each, and the comments."""
    comments: list[str] = []

    def comment() -> str:
        comments.append(f"# note {len(comments)} = [x]")
        return comments[-1]

    tables: dict[str, dict[str, object]] = {}
    for name, value in chosen.items():
        tables.setdefault(BY_NAME[name].table, {})[name.rpartition(".")[2]] = value
    lines = [comment(), ""]
    if style == "inline":
        lines += [f"{table} = {shown(entries)} {comment()}" for table, entries in tables.items()]
        return "\n".join(lines), comments
    for table, entries in tables.items():
        lines += [] if style == "dotted" else ["", f"[{table}] {comment()}"]
        for key, value in entries.items():
            lines.append(comment())
            text = shown(value)
            if isinstance(value, tuple) and value:
                text = "[\n" + "".join(f"    {shown(each)}, {comment()}\n" for each in value) + "]"
            before = f"{table}." if style == "dotted" else ""
            lines.append(f"{before}{json.dumps(key, ensure_ascii=False)} = {text} {comment()}")
    return "\n".join(lines), comments


@settings(max_examples=20)
@example({"hosts.ssh": "ssh", "dashboard.view": "runs"}, "dotted", {"hosts.ssh": "ssh -4"}, set())
@given(CHOSEN, STYLES, CHOSEN, st.sets(st.sampled_from(sorted(BY_NAME)), max_size=6))
def test_a_change_changes_what_it_names_and_keeps_everything_else(before, style, changes, removed) -> None:
    text, comments = written(before, style)
    assert read_toml(text, "f").values == before
    every: dict[str, Value | None] = {**dict.fromkeys(removed), **changes}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.toml"
        file.write_text(text, encoding="utf-8")
        file.chmod(0o600)
        environ = {"VRAMTOP_CONFIG": str(file)}
        change_settings(every, environ)
        after = file.read_text(encoding="utf-8")
        found = settings_in_force(environ)
    assert not found.problems
    for setting in SETTINGS:
        value = every[setting.name] if setting.name in every else before.get(setting.name)
        is_default = value is None
        assert found.values[setting.name] == (setting.default if is_default else value)
        assert (found.origins[setting.name] == DEFAULT) == is_default
    gone = {name for name in every if name in before}
    if not gone and style != "inline":
        assert all(comment in after for comment in comments)
    numbered, lines = after.splitlines(), lines_of(after)
    if style != "inline":
        for name in (name for name, origin in found.origins.items() if origin != DEFAULT and name in lines):
            assert name.rpartition(".")[2] in numbered[lines[name] - 1]
        assert set(changes) <= set(lines)


@settings(max_examples=40)
@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_file_is_read_without_a_failure_and_never_changed_if_it_is_broken(content: str | bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ):
        file = Path(folder) / "config.toml"
        file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        found = settings_in_force({"VRAMTOP_CONFIG": str(file)})
        assert set(found.values) == set(BY_NAME)
        assert all(problem.sentence.startswith(str(file)) for problem in found.problems)
