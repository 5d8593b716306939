"""What the readers of frameworks with loops of their own share: putting settings under job keys."""

from collections.abc import Mapping

from ...program.program import Program
from ...program.ranks import WorldSize
from ...source.evidence import FindingCollector
from ...source.settings import Setting, as_bool, as_int, as_word


def put_int(findings: FindingCollector, key: str, setting: Setting | None) -> None:
    """Put a whole number of at least 1; a warning where it is none."""
    if setting is None:
        return
    number = as_int(setting)
    if number is None:
        findings.warn(f"{setting.origin}: {setting.value!r} is not a whole number of at least 1.")
    else:
        findings.put(key, number, setting.origin, written=setting.written)


def put_bool(findings: FindingCollector, key: str, setting: Setting | None) -> None:
    """Put what is true or false; anything else says nothing."""
    if setting is not None and (value := as_bool(setting)) is not None:
        findings.put(key, value, setting.origin, written=setting.written)


def put_word(findings: FindingCollector, key: str, setting: Setting | None, values: Mapping[str, str]) -> None:
    """Put what a word stands for; a warning where it is not known."""
    if setting is None:
        return
    word = as_word(setting) or ""
    if word in values:
        findings.put(key, values[word], setting.origin, written=setting.written)
    else:
        findings.mark_uncertain(key, f"{setting.origin}: {setting.value!r} is not known here and is not counted.")


def put_ranks(
    program: Program, world: WorldSize | None, sizes: Mapping[str, Setting | None], shard: Setting | None
) -> None:
    """Put the sizes of all dimensions; data shards take the ranks that are left, where no size is written.

    Args:
        program: what is read.
        world: how many ranks there are; None: nobody says.
        sizes: by the names of ``parallel.*``, ``data_shard`` excepted; pipeline, tensor and context divide the ranks.
        shard: the written number of shards; none, or -1: the ranks that are left.
    """
    findings, taken = program.findings, 1
    for name, setting in sizes.items():
        size = as_int(setting)
        if setting is None or size is None or size == 1:
            continue
        findings.put(f"parallel.{name}", size, setting.origin, written=setting.written)
        if name != "expert":
            taken *= size
    if shard is not None and as_int(shard) is not None:
        put_int(findings, "parallel.data_shard", shard)
        return
    ranks = world.ranks if world is not None else None
    total = as_int(ranks)
    if ranks is None or total is None:
        findings.require("parallel.data_shard")
    elif total % taken:
        findings.warn(f"{total} ranks cannot be split by {taken} tensor, context, pipeline and replica ranks.")
        findings.require("parallel.data_shard")
    else:
        findings.put("parallel.data_shard", total // taken, ranks.origin, written=ranks.written)
