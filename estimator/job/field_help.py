"""Help for each key of the job file, in one sentence, with choices and default: from the docstrings of ``Job``."""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, get_args, get_origin

import msgspec

from .job import Job
from .job_file.table_fields import choices_of, field_of, table_struct

_ABSENT = re.compile(r"[;:]? ?\babsent: (?P<words>.+?)(?=;|\.( |$)|$)", re.IGNORECASE)

_PLACEHOLDERS = {
    "model.id": "MODEL",
    "model.code_folder": "FOLDER",
    "model.config": "TABLE",
    "training.optimizer_options": "KEY=VALUE",
    "parallel.tensor_plan": "MODULE:NAME",
    "parallel.device_map": "MAP",
    "parallel.max_memory": "TABLE",
    "target.gpu": "GPU",
    "software.cublas_workspace": "SIZES",
    "software.allocator_conf": "SETTINGS",
    "run.output_dir": "FOLDER",
    "run.logging_dir": "FOLDER",
    "run.inference_endpoint": "URL",
}


class FieldHelp(msgspec.Struct, frozen=True, kw_only=True):
    """The help of one key of the job file."""

    key: str
    """Dotted: ``training.micro_batch``."""
    sentence: str
    """Meaning of the key, with a full stop; empty if it has no docstring, or the source is not installed."""
    choices: tuple[str, ...] = ()
    """The words that it may have; empty if it is no choice of words."""
    default: Any = None
    """None: the key is absent by default."""
    when_absent: str | None = None
    """Meaning of its absence, in words; None: the docstring does not say."""
    placeholder: str = "NAME"
    """Placeholder of its value in a usage line: ``N``, ``NAME``, ``FOLDER``."""

    @property
    def default_text(self) -> str | None:
        """The default as a person reads it: ``2048``, ``no``, ``q_proj,v_proj``; None if nothing is known of it."""
        if self.default is None:
            return self.when_absent
        if isinstance(self.default, bool):
            return "yes" if self.default else "no"
        return ",".join(self.default) or None if isinstance(self.default, list) else str(self.default)


@lru_cache(maxsize=256)
def field_help(key: str) -> FieldHelp:
    """Return the help of a key of the job file, such as ``training.micro_batch``; of a table, what its absence means.

    Raises:
        KeyError: the job file has no such key.
    """
    table, _, name = key.partition(".")
    field = field_of(key)
    if field is None:
        raise KeyError(key)
    documents = field_documents((table_struct(table) if name else None) or Job)
    doc = " ".join(documents.get(field.name, "").partition("\n\n")[0].replace("``", "").split())
    absent = _ABSENT.search(doc)
    sentence = _ABSENT.sub("", doc).strip()
    return FieldHelp(
        key=key,
        sentence=sentence if not sentence or sentence.endswith(".") else f"{sentence}.",
        choices=choices_of(field.type),
        default=_default(field),
        when_absent=absent["words"].strip() if absent else None,
        placeholder=_PLACEHOLDERS.get(key) or _placeholder(field.type),
    )


@lru_cache(maxsize=256)
def is_switch(key: str) -> bool:
    """Return True if a key of the job file is true or false."""
    field = field_of(key)
    return field is not None and bool in (field.type, *get_args(field.type))


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        made = field.default_factory()
        return None if isinstance(made, msgspec.Struct) else made
    return None if field.default is msgspec.NODEFAULT else field.default


@lru_cache
def field_documents(kind: type[msgspec.Struct]) -> Mapping[str, str]:
    """Return the docstring of every field, as it is written; Python itself does not keep them."""
    try:
        (found,) = ast.parse(inspect.getsource(kind)).body
    except (OSError, SyntaxError):  # only compiled modules are installed
        return {}
    return dict(_below_fields(found.body)) if isinstance(found, ast.ClassDef) else {}


def _below_fields(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, after in pairwise(body):
        text = after.value if isinstance(after, ast.Expr) else None
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            yield field.target.id, inspect.cleandoc(text.value)


def _placeholder(kind: Any) -> str:
    options = [kind, *get_args(kind)]
    options += [part for option in options for part in get_args(option)]
    if int in options:
        return "N"
    if float in options:
        return "SHARE"
    return "NAMES" if any(get_origin(option) is list for option in options) else "NAME"
