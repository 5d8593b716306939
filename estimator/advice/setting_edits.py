"""Writes a suggested change as edits of the user's own settings: flags, or keys of a tool's configuration file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..job.job import Job
from ..job.job_file.changes import job_to_mapping
from ..readers.arguments.table import Written
from ..readers.source.evidence import Finding, JobReading
from ..readers.source.written_places import COMMAND_LINE, is_in_script, place_of_arguments, written_place
from ..readers.tools.tool_registry import table_of_tool

_SAME_IN_EVERY_TOOL = (
    "training.micro_batch",
    "training.evaluation_batch",
    "training.gradient_accumulation",
    "training.sequence_length",
    "lora.rank",
)
"""Numbers that every tool writes as the job file does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One setting to change in the user's command line or file."""

    key: str
    """Dotted job key that it sets."""
    place: str | None
    """``command line``, or a file's name, of a script with the line; None: unknown."""
    setting: str | None
    """The tool's flag or key; None: its name is unknown, and ``words`` describes the change."""
    old: str | None
    """The present value as text; None: the setting is not set."""
    new: str
    """The new value as text."""
    words: str
    """Text of the edit: ``--per_device_train_batch_size 4 -> 2``, ``optim='adamw_8bit' (new)``."""


def flag_edits(job: Job, changes: Mapping[str, Any], flags: Mapping[str, str]) -> tuple[Edit, ...]:
    """Return the changes as flags of vramtop itself.

    Args:
        job: the job before the change.
        changes: dotted job keys and their new values.
        flags: flag by job key.
    """
    tables = job_to_mapping(job)
    found = []
    for key, value in changes.items():
        table, _, name = key.partition(".")
        old, new = _value(tables.get(table, {}).get(name)), _value(value) or ""
        flag = flags.get(key)
        words = f"{flag} {new}" if flag else f"--set {key}={new}"
        found.append(Edit(key=key, place=COMMAND_LINE, setting=flag or "--set", old=old, new=new, words=words))
    return tuple(found)


def tool_edits(
    reading: "JobReading", job: Job, changes: Mapping[str, Any], *, tool: str | None, place: str | None = None
) -> tuple[Edit, ...]:
    """Return the changes as settings of the tool that the job was read from.

    Args:
        reading: the settings that were read, each with its evidence.
        job: the job before the change.
        changes: dotted job keys and their new values.
        tool: name of the tool in ``readers.tools.tool_registry``; None: a script of the user's own.
        place: where new settings belong if the evidence does not show it: ``command line``, or a file's name.
    """
    findings = {finding.key: finding for finding in reading.findings}
    in_calls = [place_in for finding in reading.findings if (place_in := place_of_arguments(finding))]
    of_tool = [each for each in reading.findings if each.key.startswith(("model.", "training.", "lora."))]
    written = [where[0] for finding in of_tool if (where := written_place(finding))]
    elsewhere = [where for where in written if not is_in_script(where)]
    places = in_calls or elsewhere  # a script that makes its trainer's arguments need not have flags for all
    place = max(places, key=places.count) if places else place  # where most of the settings are written
    found: list[Edit] = []
    for key, value in changes.items():
        now = findings.get(key)
        if now is not None and now.value == value:
            continue
        found += _edits_of(key, value, now, job=job, tool=tool, place=place)
    # a setting that accompanies one key may be an edit of its own for another key
    last = {(edit.place, edit.setting): edit for edit in found if edit.setting}
    return tuple(edit for edit in found if not edit.setting or last[edit.place, edit.setting] is edit)


def edits_text(edits: Sequence[Edit], between: str) -> str:
    """Return edits in one line; those of a line of a script come last, behind the name of the script."""
    lines: dict[str, list[str]] = {}
    for edit in edits:
        lines.setdefault(f"{edit.place}: " if is_in_script(edit.place) else "", []).append(edit.words)
    return between.join(place + between.join(lines[place]) for place in sorted(lines))


def _edits_of(
    key: str, value: Any, now: "Finding | None", *, job: Job, tool: str | None, place: str | None
) -> Iterator[Edit]:
    names = table_of_tool(tool)
    follows = names.derived.get(key)
    if follows:
        yield _described_edit(key, value, f"{key} becomes {_value(value)} automatically: {follows} stays the same")
        return
    known = names.write.get(key)
    in_place = _edit_in_place(key, value, now, known) if now is not None else None
    if in_place is not None:
        yield in_place
        return
    takes = not is_in_script(place) or (key.startswith("training.") and key != "training.sequence_length")
    if known is not None and takes and (new := _tool_value(known, value)) is not None:
        for name, other in known.also.items():
            yield _edit(key, place, _flag_or_key(name, place, tool), None, other)
        yield _edit(key, place, _flag_or_key(known.name, place, tool), None, new)
        return
    if key in names.tell:
        yield _described_edit(key, value, names.tell[key].format(value=_value(value)))
        return
    table, _, name = key.partition(".")
    old = _value(job_to_mapping(job).get(table, {}).get(name))
    yield _described_edit(key, value, f"{key}: {old or 'not set'} -> {_value(value)}")


def _edit_in_place(key: str, value: Any, now: "Finding", known: Written | None) -> Edit | None:
    """Return the change of the setting that the user wrote; None if its value has no equivalent there."""
    written = written_place(now)
    if written is None:
        return None
    place, setting = written
    same = key in _SAME_IN_EVERY_TOOL
    if not same and not (known and known.name == setting.strip("-=")):
        return None
    new = _tool_value(known, value) if known and not same else value
    if new is None:
        return None
    old = _tool_value(known, now.value) if known and not isinstance(now.value, list) else None
    old = now.value if old is None else old
    return _edit(key, place, setting, old, new)


def _flag_or_key(name: str, place: str | None, tool: str | None) -> str:
    if is_in_script(place):
        return f"{name}="
    dashed = place == COMMAND_LINE or table_of_tool(tool).always_flags
    return f"--{name}" if dashed else name


def _tool_value(known: Written, value: Any) -> Any:
    """Return the tool's value for a value of the job; None if it has no equivalent."""
    if known.values is None:
        return value
    word = str(value).lower() if isinstance(value, bool) else str(value)
    return known.values.get(word) if not isinstance(value, list) else None


def _edit(key: str, place: str | None, setting: str, old: Any, new: Any) -> Edit:
    before, after = map(repr if is_in_script(place) else _value, (old, new))
    before = None if old is None else before
    joint = "" if setting.endswith("=") else " " if setting.startswith("-") else ": "
    if before is not None:
        words = f"{setting}{joint}{before} -> {after}"
    else:
        words = f"{setting if new is True and setting.startswith('--') else f'{setting}{joint}{after}'} (new)"
    return Edit(key=key, place=place, setting=setting, old=before, new=after or "", words=words)


def _described_edit(key: str, value: Any, words: str) -> Edit:
    return Edit(key=key, place=None, setting=None, old=None, new=_value(value) or "", words=words)


def _value(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
