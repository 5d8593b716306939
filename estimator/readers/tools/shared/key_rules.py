"""Rules from a tool's settings to job keys, and the ranks of tools with a training loop of their own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....job.rules import optimizer_arguments, optimizer_by_class
from ...program import WorldSize
from ...source import (
    FindingCollector,
    LayeredSettings,
    Setting,
    as_bool,
    as_int,
    as_word,
    default_setting,
    is_open,
)


@dataclass(frozen=True, slots=True)
class KeyRule:
    """A job key that one setting of a tool decides by itself."""

    key: str
    names: tuple[str, ...]
    """The setting's names; earlier ones win."""
    record: Callable[[FindingCollector, str, Setting], None]
    default: object = None
    """The tool's default; None: the key stays open without the setting."""


_MICRO_BATCH = "training.micro_batch"


def int_rule(key: str, *names: str, default: int | None = None) -> KeyRule:
    """Return a rule for a whole number of at least 1."""
    return KeyRule(key, names, record_int, default)


def bool_rule(key: str, *names: str) -> KeyRule:
    """Return a rule for a value that is true or false."""
    return KeyRule(key, names, record_bool)


def word_rule(key: str, values: Mapping[str, str], *names: str, default: str | None = None) -> KeyRule:
    """Return a rule for a word, with the job's value for each word of the tool."""
    return KeyRule(key, names, lambda findings, key, setting: record_word(findings, key, setting, values), default)


def switch_rule(key: str, value: object, *names: str) -> KeyRule:
    """Return a rule that records a value where the setting is true, and nothing otherwise."""

    def record(findings: FindingCollector, key: str, setting: Setting) -> None:
        if as_bool(setting):
            findings.record_from(setting, key, value)

    return KeyRule(key, names, record)


def apply_rules(rules: Sequence[KeyRule], settings: LayeredSettings, findings: FindingCollector, *, tool: str) -> None:
    """Record the job keys that the settings decide, by the tool's rules; ``tool`` is the name for its defaults."""
    for rule in rules:
        setting = settings.find(*rule.names)
        unset = settings.find_unset(*rule.names) if rule.key == _MICRO_BATCH else None
        if unset is not None and unset.written:
            findings.refuse(rule.key, unset)  # no tool starts with a null batch
        if setting is None and rule.default is not None:
            setting = default_setting(rule.default, f"{tool}'s default {rule.names[0]}")
        if setting is not None:
            rule.record(findings, rule.key, setting)


def record_int(findings: FindingCollector, key: str, setting: Setting | None) -> None:
    """Record a whole number of at least 1; refuse any other value."""
    findings.record_count(key, setting)


def record_share(findings: FindingCollector, key: str, setting: Setting, *, whole: bool) -> None:
    """Record a share of the GPU's memory; refuse any other value.

    Args:
        findings: receives the value.
        key: the job's key.
        setting: as it was found.
        whole: the share may be 1.
    """
    try:
        number = 0.0 if isinstance(setting.value, bool) else float(setting.value)
    except (TypeError, ValueError, OverflowError):
        number = 0.0
    if 0 < number < 1 or (whole and number == 1):
        findings.record_from(setting, key, number)
    else:
        findings.refuse(key, setting, f"share of the GPU's memory (above 0, {'at most' if whole else 'below'} 1)")


def record_bool(findings: FindingCollector, key: str, setting: Setting | None) -> None:
    """Record a value that is true or false; ignore any other."""
    if setting is not None and (value := as_bool(setting)) is not None:
        findings.record_from(setting, key, value)


def record_word(findings: FindingCollector, key: str, setting: Setting | None, values: Mapping[str, str]) -> None:
    """Record the job's value for a word; warn about an unknown word."""
    if setting is None:
        return
    word = as_word(setting) or ""
    if word in values:
        findings.record_from(setting, key, values[word])
    else:
        findings.mark_uncertain(key, f"{setting.origin}: {setting.value!r} is not known here and is not counted.")


def record_optimizer(findings: FindingCollector, setting: Setting, *, options: Mapping[str, Any]) -> None:
    """Record the optimizer class that a tool's setting names, with its keyword arguments."""
    findings.record_optimizer(setting, optimizer_by_class(str(setting.value), options))


def optimizer_options(settings: LayeredSettings, *prefixes: str) -> dict[str, Any]:
    """Return the keyword arguments of an optimizer on which memory depends, from settings named ``PREFIX argument``."""
    found = {name: settings.find(*(prefix + name for prefix in prefixes)) for name in optimizer_arguments()}
    return {name: setting.value for name, setting in found.items() if setting is not None}


def record_ranks(
    findings: FindingCollector, world: WorldSize | None, sizes: Mapping[str, Setting | None], shard: Setting | None
) -> None:
    """Record the size of every dimension; data shards get the remaining ranks, unless their number is written.

    Args:
        findings: collects what is recorded.
        world: the number of ranks; None: unknown.
        sizes: sizes by the names of ``parallel.*`` without ``data_shard``; all but ``expert`` divide the ranks.
        shard: the written number of shards; None, or -1: the remaining ranks.
    """
    divisor = 1
    for name, setting in sizes.items():
        size = as_int(setting)
        if setting is not None and size is None and not is_open(setting):
            findings.refuse(f"parallel.{name}", setting)
        if setting is None or size is None or size == 1:
            continue
        findings.record_from(setting, f"parallel.{name}", size)
        if name != "expert":
            divisor *= size
    if shard is not None and not is_open(shard):
        record_int(findings, "parallel.data_shard", shard)
        return
    ranks = world.ranks if world is not None else None
    total = as_int(ranks)
    if ranks is None or total is None:
        findings.require("parallel.data_shard")
    elif total % divisor:
        findings.warn(f"{total} ranks cannot be split by {divisor} tensor, context, pipeline and replica ranks.")
        findings.require("parallel.data_shard")
    else:
        findings.record_from(ranks, "parallel.data_shard", total // divisor)


def record_dropout(findings: FindingCollector, setting: Setting | None) -> None:
    """Record the dropout of adapters, where a setting says it."""
    try:
        share = float(str(setting.value)) if setting is not None else -1.0
    except ValueError:
        return
    if setting is not None and 0 <= share < 1:
        findings.record_from(setting, "lora.dropout", share)
