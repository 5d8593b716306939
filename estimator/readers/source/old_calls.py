"""Calls and arguments that today's libraries refuse: a script that has them runs with an older version."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, toml

from ...common.library_versions import older
from .versions import AssumedVersion, version_tuple


class OldCall(Struct, frozen=True, kw_only=True):
    """Something that a library took until a version."""

    library: str
    last: str
    """The last minor version that takes it."""
    source: str
    call: str = ""
    """The end of the name of a function, class or method; empty: ``names`` are called or imported from."""
    names: frozenset[str]
    """Arguments of the call; without one a function, class or module."""
    transformers: str | None = None
    """transformers' version of the same time, for another library."""


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    """The file ``old_calls.toml``."""

    newest_trl: Mapping[str, str]
    """The newest TRL that can be installed beside a transformers older than the version."""
    old: tuple[OldCall, ...]


_TABLE = toml.decode(Path(__file__).with_name("old_calls.toml").read_bytes(), type=_File)
OLD_CALLS = _TABLE.old


def old_names(path: str) -> Iterator[tuple[OldCall, str]]:
    """Yield what of a called name is old: ``transformers.AdamW``, ``trl.commands.cli_utils.TrlParser``."""
    library, _, rest = path.partition(".")
    for row in OLD_CALLS:
        if not row.call and row.library == library and not row.names.isdisjoint(rest.split(".")):
            yield row, path


def old_arguments(library: str, name: str, arguments: Iterable[str]) -> Iterator[tuple[OldCall, str]]:
    """Yield what of a call is old, with the argument.

    Args:
        library: whose function it is.
        name: the last part of its name.
        arguments: those that it is given by name.
    """
    for row in OLD_CALLS:
        if row.call and row.library == library and name.endswith(row.call):
            yield from ((row, argument) for argument in arguments if argument in row.names)


def assumed_versions(
    found: Mapping[OldCall, str],
    versions: Mapping[str, str],
    beside_python: Mapping[str, str] | None = None,
    *,
    uses_trl: bool = False,
) -> dict[str, AssumedVersion]:
    """Return the newest versions that take all that a script has, of the libraries whose version is not known.

    Args:
        found: what it has that newer ones refuse, and where.
        versions: the known ones.
        beside_python: those of them that are merely installed for the line's Python: a newer one cannot run the script.
        uses_trl: it trains with TRL, whose version has to go with transformers'.
    """
    assumed: dict[str, AssumedVersion] = {}
    for row, where in found.items():
        takes = f"the last that takes {where}"
        of_its_time = f"as old as {row.library} {row.last}, {takes}"
        for library, last, why in ((row.library, row.last, takes), ("transformers", row.transformers, of_its_time)):
            known, limit = versions.get(library), version_tuple(last) or ()
            may_differ = known is None or known == (beside_python or {}).get(library)
            if last is None or not may_differ or (known is not None and (version_tuple(known) or ()) <= limit):
                continue
            before = version_tuple(assumed.get(library))
            if before is None or limit < before:
                assumed[library] = AssumedVersion(last, why)
    transformers = {**versions, **assumed}.get("transformers")
    rows = ((version_tuple(than) or (), last) for than, last in _TABLE.newest_trl.items())
    newest = next((last for than, last in rows if older(transformers, *than)), None)
    assumed_trl = version_tuple(assumed.get("trl")) or (1, 0)
    if uses_trl and "trl" not in versions and newest is not None and older(newest, *assumed_trl):
        assumed["trl"] = AssumedVersion(newest, f"the newest beside transformers {transformers}")
    return assumed
