"""Rules from a tool's settings to job keys, and the ranks of tools with a training loop of their own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...program.program import Program
from ...program.ranks import WorldSize
from ...source.evidence import FindingCollector
from ...source.settings import LayeredSettings, Setting, as_bool, as_int, as_word, default_setting


@dataclass(frozen=True, slots=True)
class KeyRule:
    """A job key that one setting of a tool decides by itself."""

    key: str
    names: tuple[str, ...]
    """The setting's names; earlier ones win."""
    put: Callable[[FindingCollector, str, Setting], None]
    default: object = None
    """The tool's default; None: the key stays open without the setting."""


def int_rule(key: str, *names: str, default: int | None = None) -> KeyRule:
    """Return a rule for a whole number of at least 1."""
    return KeyRule(key, names, put_int, default)


def bool_rule(key: str, *names: str) -> KeyRule:
    """Return a rule for a value that is true or false."""
    return KeyRule(key, names, put_bool)


def word_rule(key: str, values: Mapping[str, str], *names: str, default: str | None = None) -> KeyRule:
    """Return a rule for a word, with the job's value for each word of the tool."""
    return KeyRule(key, names, lambda findings, key, setting: put_word(findings, key, setting, values), default)


def switch_rule(key: str, value: object, *names: str) -> KeyRule:
    """Return a rule that puts a value where the setting is true, and nothing otherwise."""

    def put(findings: FindingCollector, key: str, setting: Setting) -> None:
        if as_bool(setting):
            findings.put_from(setting, key, value)

    return KeyRule(key, names, put)


def apply_rules(rules: Sequence[KeyRule], settings: LayeredSettings, findings: FindingCollector, *, tool: str) -> None:
    """Put the job keys that the settings decide, by the tool's rules; ``tool`` is the name for its defaults."""
    for rule in rules:
        setting = settings.find(*rule.names)
        if setting is None and rule.default is not None:
            setting = default_setting(rule.default, f"{tool}'s default {rule.names[0]}")
        if setting is not None:
            rule.put(findings, rule.key, setting)


def put_int(findings: FindingCollector, key: str, setting: Setting | None) -> None:
    """Put a whole number of at least 1; warn about any other value."""
    if setting is None:
        return
    number = as_int(setting)
    if number is None:
        findings.warn(f"{setting.origin}: {setting.value!r} is not a whole number of at least 1.")
    else:
        findings.put_from(setting, key, number)


def put_bool(findings: FindingCollector, key: str, setting: Setting | None) -> None:
    """Put a value that is true or false; ignore any other."""
    if setting is not None and (value := as_bool(setting)) is not None:
        findings.put_from(setting, key, value)


def put_word(findings: FindingCollector, key: str, setting: Setting | None, values: Mapping[str, str]) -> None:
    """Put the job's value for a word; warn about an unknown word."""
    if setting is None:
        return
    word = as_word(setting) or ""
    if word in values:
        findings.put_from(setting, key, values[word])
    else:
        findings.mark_uncertain(key, f"{setting.origin}: {setting.value!r} is not known here and is not counted.")


def known_optimizer(setting: Setting, names: Mapping[str, str], findings: FindingCollector) -> str:
    """Return the job's name of an optimizer; an unknown one is counted as adamw, and marked as uncertain."""
    known = names.get(as_word(setting) or "")
    if known is None:
        sentence = f"{setting.origin}: optimizer {setting.value!r} is not known here and is counted as adamw."
        findings.mark_uncertain("training.optimizer", sentence)
    return known or "adamw"


def put_ranks(
    program: Program, world: WorldSize | None, sizes: Mapping[str, Setting | None], shard: Setting | None
) -> None:
    """Put the size of every dimension; data shards get the remaining ranks, unless their number is written.

    Args:
        program: the program, which collects the findings.
        world: the number of ranks; None: unknown.
        sizes: sizes by the names of ``parallel.*`` without ``data_shard``; all but ``expert`` divide the ranks.
        shard: the written number of shards; None, or -1: the remaining ranks.
    """
    findings, divisor = program.findings, 1
    for name, setting in sizes.items():
        size = as_int(setting)
        if setting is None or size is None or size == 1:
            continue
        findings.put_from(setting, f"parallel.{name}", size)
        if name != "expert":
            divisor *= size
    if shard is not None and as_int(shard) is not None:
        put_int(findings, "parallel.data_shard", shard)
        return
    ranks = world.ranks if world is not None else None
    total = as_int(ranks)
    if ranks is None or total is None:
        findings.require("parallel.data_shard")
    elif total % divisor:
        findings.warn(f"{total} ranks cannot be split by {divisor} tensor, context, pipeline and replica ranks.")
        findings.require("parallel.data_shard")
    else:
        findings.put_from(ranks, "parallel.data_shard", total // divisor)
