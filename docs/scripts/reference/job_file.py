"""The page of the job file: every key with its values, its default, its flag and its meaning."""

import inspect
import re
from collections.abc import Iterator
from itertools import groupby, starmap
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as types

from vramtop.estimator.job.field_help import field_documents
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.table_fields import choices_of, entry_struct, table_struct
from vramtop.estimator.job.settings import EnvironmentName, Version
from vramtop.tui.job.flags.job_flags import flags_by_key

from .markdown import block, bullets, code, codes, key_line, page, prose

EXAMPLES = tuple(Path(__file__).with_name(f"{name}_example.toml") for name in ("job_file", "served_model"))
_INTRODUCTION = """\
Every key of a [job file](../how-to/job-files.md). Only a model is required.

- **Flags** override the file: `--micro-batch` for `training.micro_batch`, with the table's name before it in `[lora]`
  and `[inference]`; `--set TABLE.KEY=VALUE` sets any key.
- **Paths**: a model folder is relative to the file; `run.output_dir` to the folder in which the job is started.
- **A key** is shown with its default (`micro_batch = 1`) and its other values; without a default, the framework's
  behaviour holds, unless the key says otherwise.
- **Editors** complete and check keys by the [schema](schemas/job-file.json): `#:schema /path/to/job-file.json` in the
  first line, for Taplo (Even Better TOML)."""
_UNITS = """\
- Sizes are bytes; in `parallel.max_memory` they may have a unit: `"20GiB"`, `"20GB"`, `"512MiB"`.
- Lengths are tokens, batches are sequences, and `zero` counts elements (parameters).
- On the command line a size without a unit is GiB (`--gpu-memory 24`), and `4k` is 4096 tokens."""
_MANY = 12
"""Words of a choice of which the page has all."""
_AS_THE_FRAMEWORK = re.compile(
    r"; absent: (?:as (?:in )?the (?:framework|strategy)(?: does)?|the (?:framework|strategy|precision)'s)\.(?=$|\n)"
)
"""What the introduction says of all keys without a default."""
_ABOUT = re.compile(r"^(Version|Possible error) of [^;]+\.$")
_TEXTS = ((types.type_info(Version), "version"), (types.type_info(EnvironmentName), "name of a variable"))
"""Texts with a pattern, in words."""


def job_file_page() -> str:
    """Return the page."""
    return page(
        "Job file",
        _INTRODUCTION,
        "## Examples",
        *(block(example.read_text(encoding="utf-8"), "toml") for example in EXAMPLES),
        "## Units",
        _UNITS,
        *_tables(),
    )


def _tables() -> Iterator[str]:
    yield "## Top level"
    whole = msgspec.structs.fields(Job)
    yield _keys("", [each for each in whole if not _struct_of(each.encode_name)], Job)
    documents = field_documents(Job)
    for each in whole:
        kind = _struct_of(each.encode_name)
        if kind is None:
            continue
        is_list = entry_struct(each.encode_name) is not None and table_struct(each.encode_name) is None
        yield f"## `[[{each.encode_name}]]`" if is_list else f"## `[{each.encode_name}]`"
        document = inspect.cleandoc(kind.__doc__ or "")
        yield "\n\n".join(prose(part) for part in document.split("\n\n"))
        if each.name in documents and each.default is None:
            yield prose(documents[each.name]).replace("Absent:", "Without this table:")
        prefix = "" if is_list else f"{each.encode_name}."
        yield _keys(prefix, msgspec.structs.fields(kind), kind)


def _struct_of(name: str) -> type[msgspec.Struct] | None:
    return table_struct(name) or entry_struct(name)


def _keys(prefix: str, fields: Any, kind: type[msgspec.Struct]) -> str:
    documents, flags = field_documents(kind), flags_by_key()
    rows = []
    for field in fields:
        flag = flags.get(f"{prefix}{field.encode_name}", "")
        named = flag.removeprefix("--").removeprefix(f"{prefix.removesuffix('.')}-").replace("-", "_")
        meaning = prose(_AS_THE_FRAMEWORK.sub(".", documents.get(field.name, "")))
        values, default = _values(field, prefix), _default(field)
        if default and (choices := choices_of(field.type)) and all(code(word) in meaning for word in choices):
            values = "text"  # the meaning lists them
        values = values.removeprefix(f"{code(default.strip(chr(34)))}, ")
        rows.append(
            (
                field.encode_name,
                values,
                default,
                meaning if named in ("", field.encode_name) else f"{meaning} Flag: {code(flag)}.",
            )
        )
    return bullets(starmap(key_line, _merged(rows)))


def _merged(rows: list[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield rows; of keys that differ in what they are about alone, one row, with their default in the meaning."""
    for (value, default, meaning), alike in groupby(rows, key=lambda row: (*row[1:3], _ABOUT.sub(r"\1.", row[3]))):
        several = list(alike)
        if len(several) == 1:
            yield several[0]
            continue
        each = "the library" if meaning.startswith("Version") else "the component"
        yield ("`, `".join(row[0] for row in several), value, default, f"{meaning.removesuffix('.')} of {each}.")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        made = field.default_factory()
        return _toml(made) if made else ""
    if field.default is None:
        return ""
    return "required" if field.default is msgspec.NODEFAULT else _toml(field.default)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(f'"{each}"' for each in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _values(field: msgspec.structs.FieldInfo, prefix: str) -> str:
    if prefix + field.encode_name == "training.optimizer":
        return "a word of the [optimizers](optimizers.md), or `module:Class`"
    if field.encode_name == "task" and not prefix:
        return "as `model.task`"
    choices = choices_of(field.type)
    if len(choices) > _MANY:
        return f"{codes(choices[:_MANY])}, ...; the [schema](schemas/job-file.json) has all"
    return _in_words(types.type_info(field.type), choices)


def _in_words(kind: types.Type, choices: tuple[str, ...]) -> str:
    """Return what a value may be; of words in the order in which the code has them."""
    match kind:
        case types.Metadata(type=inner):
            return _in_words(inner, choices)
        case types.BoolType():
            return "boolean"
        case types.LiteralType(values=values):
            words = [word for word in choices if word in values] or list(map(str, values))
            return codes(words)
        case types.IntType() | types.FloatType():
            return _number(kind)
        case types.StrType(pattern=pattern):
            named = next((word for known, word in _TEXTS if known == kind), None)
            return named or (f"text like `{pattern}`" if pattern else "text")
        case types.ListType(item_type=item):
            return f"list: {_in_words(item, choices)}"
        case types.DictType(value_type=value):
            return "table" if isinstance(value, types.AnyType) else f"table: {_in_words(value, choices)}"
        case types.UnionType(types=several):
            return ", or ".join(_in_words(each, choices) for each in several if not isinstance(each, types.NoneType))
        case _:
            return "any value"


def _number(kind: types.IntType | types.FloatType) -> str:
    if isinstance(kind, types.IntType):
        return "integer"
    bounds = [(">", kind.gt), ("≥", kind.ge), ("<", kind.lt), ("≤", kind.le)]
    return f"number {', '.join(f'{sign} {bound}' for sign, bound in bounds if bound is not None)}".strip()
