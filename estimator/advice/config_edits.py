"""A suggested change as an edit of what the user wrote: flags, or keys of another tool's file."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..job.job import Job
from ..job.job_file import job_to_mapping
from .tool_keys import DERIVED_KEYS, TOOL_KEYS, ToolKey

if TYPE_CHECKING:
    from ..readers.source.evidence import Finding, JobReading

_ON_COMMAND_LINE = re.compile(r"^(?P<setting>--?[\w.-]+|[\w.-]+=) on the command line$")
_IN_FILE = re.compile(r"^(?P<place>[^:\s]+\.(?:ya?ml|json|toml)): (?P<setting>[\w.-]+)$")
_PAIRED = re.compile(r"^(?P<origin>.*), times 2: each example is a chosen and a rejected sequence$")
_SAME_IN_EVERY_TOOL = (
    "training.micro_batch",
    "training.gradient_accumulation",
    "training.sequence_length",
    "lora.rank",
)
"""Numbers that every tool writes as the job does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One setting to change."""

    key: str
    """The job key it stands for."""
    place: str | None
    """``command line``, or a file's name; None: not known."""
    setting: str | None
    """The flag or the key, as the tool calls it; None: its name is not known, and ``words`` says what to do."""
    old: str | None
    """None: it is not set now."""
    new: str
    words: str
    """For people: ``--per_device_train_batch_size 4 -> 2``."""

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self)


def flag_edits(job: Job, changes: Mapping[str, Any], flags: Mapping[str, str]) -> tuple[Edit, ...]:
    """As flags of vramtop itself.

    Args:
        job: as it is.
        changes: dotted job keys and their values.
        flags: a flag by job key.
    """
    tables = job_to_mapping(job)
    found = []
    for key, value in changes.items():
        table, _, name = key.partition(".")
        old, new = _value(tables.get(table, {}).get(name)), _value(value) or ""
        flag = flags.get(key)
        words = f"{flag} {new}" if flag else f"--set {key}={new}"
        found.append(Edit(key=key, place="command line", setting=flag or "--set", old=old, new=new, words=words))
    return tuple(found)


def tool_edits(
    reading: "JobReading", job: Job, changes: Mapping[str, Any], *, tool: str | None, place: str | None = None
) -> tuple[Edit, ...]:
    """As settings of the tool that the job was read from, by the names that stand there, or the tool's own for them.

    Args:
        reading: what was read, with where.
        job: as it is.
        changes: dotted job keys and their values.
        tool: as ``tool_keys`` calls it; None: a script of the user's own.
        place: where new settings go, if nothing that was read says so: ``command line``, or a file's name.
    """
    findings = {finding.key: finding for finding in reading.findings}
    place = _usual_place(reading) or place
    found: list[Edit] = []
    for key, value in changes.items():
        now = findings.get(key)
        if now is not None and now.value == value:
            continue
        found += _edits_of(key, value, now, job=job, tool=tool, place=place)
    # what is set along with one key may be set by another one itself
    last = {(edit.place, edit.setting): edit for edit in found if edit.setting}
    return tuple(edit for edit in found if not edit.setting or last[edit.place, edit.setting] is edit)


def _edits_of(
    key: str, value: Any, now: "Finding | None", *, job: Job, tool: str | None, place: str | None
) -> Iterator[Edit]:
    follows = DERIVED_KEYS.get(tool or "", {}).get(key)
    if follows:
        yield _in_words(key, value, f"{key} becomes {_value(value)} by itself: {follows} stays")
        return
    known = TOOL_KEYS.get(tool or "", {}).get(key)
    said = _where(now)
    if (
        said is not None
        and now is not None
        and (key in _SAME_IN_EVERY_TOOL or (known and known.name == said[1].strip("-=")))
    ):
        twice = _PAIRED.match(now.origin) is not None
        new = value // 2 if twice and value % 2 == 0 else value if not twice else None
        tools_new = _translated(known, new) if known and key not in _SAME_IN_EVERY_TOOL else new
        if tools_new is not None:
            old = now.value // 2 if twice else _untranslated(known, now.value)
            yield _edit(key, said[0], said[1], old, tools_new)
            return
    if known is not None and (new := _translated(known, value)) is not None:
        for name, other in known.also.items():
            yield _edit(key, place, _spelled(name, place, tool), None, other)
        yield _edit(key, place, _spelled(known.name, place, tool), None, new)
        return
    table, _, name = key.partition(".")
    old = _value(job_to_mapping(job).get(table, {}).get(name))
    yield _in_words(key, value, f"{key}: {old or 'not set'} -> {_value(value)}")


def _where(finding: "Finding | None") -> tuple[str, str] | None:
    """(place, setting) where somebody wrote the value down, if it stands there by itself."""
    if finding is None or not finding.written:
        return None
    twice = _PAIRED.match(finding.origin)
    origin = (twice["origin"] if twice else finding.origin).removesuffix(", the longest a batch can be")
    if match := _ON_COMMAND_LINE.match(origin):
        return "command line", match["setting"]
    if match := _IN_FILE.match(origin):
        return match["place"], match["setting"]
    return None


def _usual_place(reading: "JobReading") -> str | None:
    """Where most of what was read is written."""
    places = [where[0] for finding in reading.findings if (where := _where(finding))]
    return max(places, key=places.count) if places else None


def _spelled(name: str, place: str | None, tool: str | None) -> str:
    dashed = place == "command line" or tool == "Megatron-LM"
    return f"--{name}" if dashed else name


def _translated(known: ToolKey, value: Any) -> Any:
    if known.values is None:
        return value
    return known.values.get(value) if not isinstance(value, list) else None


def _untranslated(known: ToolKey | None, value: Any) -> Any:
    """What the tool's file has for the job's value, where that is one of the known ones."""
    if known is None or known.values is None or isinstance(value, list):
        return value
    return known.values.get(value)


def _edit(key: str, place: str | None, setting: str, old: Any, new: Any) -> Edit:
    before, after = _value(old), _value(new)
    equals = setting.endswith("=")
    joint = "" if equals else " " if setting.startswith("-") else ": "
    if before is not None:
        words = f"{setting}{joint}{before} -> {after}"
    else:
        words = f"{setting if new is True and setting.startswith('--') else f'{setting}{joint}{after}'} (new)"
    return Edit(key=key, place=place, setting=setting, old=before, new=after or "", words=words)


def _in_words(key: str, value: Any, words: str) -> Edit:
    return Edit(key=key, place=None, setting=None, old=None, new=_value(value) or "", words=words)


def _value(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
