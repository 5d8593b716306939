"""Makes a JSON Schema (draft 2020-12) of the types of a JSON: typed dicts, records and their field docstrings."""

import ast
import dataclasses
import inspect
import json
import re
import sys
import textwrap
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from vramtop.estimator.common.fields_of import FieldsOf

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "pattern": "pattern",
    "min_length": "minLength",
    "max_length": "maxLength",
}
_NULL = {"type": "null"}


def schema_of(kind: Any, *, name: str, title: str, apart: Mapping[type, str] | None = None) -> dict[str, Any]:
    """Return the schema of a type, with the definitions that it needs.

    Args:
        kind: a typed dict, or a record as ``FieldsOf`` marks it.
        name: last part of its ``$id``.
        title: of the schema.
        apart: records that have a schema of their own, with its name: here they are objects, with a comment.
    """
    maker = _Maker({record: other for record, other in (apart or {}).items() if other != name})
    found = maker.of(kind)
    if maker.unexplained:
        raise ValueError(f"no docstring, or none that says what its absence means: {', '.join(maker.unexplained)}")
    top = maker.definitions.pop(found["$ref"].rpartition("/")[2]) if "$ref" in found else found
    head = {"$schema": DIALECT, "$id": f"urn:vramtop:json:{name}", "title": title}
    rest = {key: value for key, value in top.items() if key != "title"}
    return {**head, **rest, **({"$defs": dict(sorted(maker.definitions.items()))} if maker.definitions else {})}


class _Maker:
    """Makes schemas of types, and collects those of records under their names."""

    def __init__(self, apart: Mapping[type, str]) -> None:
        self._apart = apart
        self.definitions: dict[str, dict[str, Any]] = {}
        self.unexplained: list[str] = []
        """Fields without a docstring."""
        self._made: dict[str, tuple[type, FieldsOf | None]] = {}

    def of(self, kind: Any, mark: FieldsOf | None = None) -> dict[str, Any]:
        """Return the schema of a type.

        Args:
            kind: the type.
            mark: how the record that it is a field of becomes JSON.
        """
        origin, args = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self._annotated(args[0], args[1:], mark)
        if kind is Any or kind is object:
            return {}
        if kind in _PLAIN:
            return {"type": _PLAIN[kind]}
        if origin is Literal:
            return {"const": args[0]} if len(args) == 1 else {"enum": list(args)}
        if origin in (Union, types.UnionType):
            return self._any_of(args, mark)
        if origin in (dict, Mapping) or (inspect.isclass(origin) and issubclass(origin, Mapping)):
            return self._mapping(args, mark)
        if origin in (list, tuple, Sequence) or (inspect.isclass(origin) and issubclass(origin, Sequence)):
            return self._array(args, mark)
        return self._reference(kind, mark)

    def _annotated(self, kind: Any, notes: tuple[Any, ...], mark: FieldsOf | None) -> dict[str, Any]:
        found = next((note for note in notes if isinstance(note, FieldsOf)), None)
        if found is not None:
            return self._reference(found.record, found)
        schema = self.of(kind, mark)
        is_list = schema.get("type") == "array"
        for note in notes:
            for ours, theirs in _BOUNDS.items():
                value = getattr(note, ours, None) if isinstance(note, msgspec.Meta) else None
                if value is not None:
                    schema[theirs.replace("Length", "Items") if is_list else theirs] = value
        return schema

    def _any_of(self, kinds: Sequence[Any], mark: FieldsOf | None) -> dict[str, Any]:
        found: list[dict[str, Any]] = []
        for each in (self.of(kind, mark) for kind in kinds):
            found += each["anyOf"] if list(each) == ["anyOf"] else [each]
        found = [each for at, each in enumerate(found) if each not in found[:at]]
        plain = [each["type"] for each in found if list(each) == ["type"]]
        if len(plain) == len(found):
            return {"type": plain}
        words = [each for each in found if list(each) in (["enum"], ["const"])]
        if words and all(each in words or each == _NULL for each in found):
            values = [value for each in words for value in each.get("enum", [each.get("const")])]
            return {"enum": [*values, *([None] if _NULL in found else [])]}
        return {"anyOf": sorted(found, key=lambda each: each == _NULL)}

    def _mapping(self, args: tuple[Any, ...], mark: FieldsOf | None) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "object"}
        if args:
            names = self.of(args[0])
            values = self.of(args[1], mark)
            found |= {"propertyNames": names} if names != {"type": "string"} else {}
            found |= {"additionalProperties": values or True}
        return found

    def _array(self, args: tuple[Any, ...], mark: FieldsOf | None) -> dict[str, Any]:
        if len(args) > 1 and args[-1] is not Ellipsis:
            parts = [self.of(each, mark) for each in args]
            return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
        return {"type": "array", "items": self.of(args[0], mark)}

    def _reference(self, kind: type, mark: FieldsOf | None) -> dict[str, Any]:
        """Return a reference to the schema of a record, which is made if there is none."""
        if kind in self._apart:
            return {"type": "object", "$comment": f"{self._apart[kind]}.json"}
        plain = mark if mark and (mark.is_whole or mark.also) else None
        how = "Whole" if plain and plain.is_whole else ""
        named = plain.also if plain and plain.also else kind
        name = how + named.__name__.removesuffix("Json").lstrip("_")
        if name not in self._made:
            self._made[name] = (kind, plain)
            self.definitions[name] = {}  # a record may refer to itself
            self.definitions[name] = self._record(kind, plain)
        elif self._made[name][0] is not kind:
            raise ValueError(f"two types are called {name}: {kind} and {self._made[name][0]}")
        return {"$ref": f"#/$defs/{name}"}

    def _record(self, kind: type, mark: FieldsOf | None) -> dict[str, Any]:
        texts = field_texts(kind)
        properties: dict[str, Any] = {}
        required: list[str] = []
        inherited = FieldsOf(kind, is_whole=True) if mark and mark.is_whole else None
        about = plain_text(first_paragraph(kind))
        for name, (hint, optional) in _fields(kind, mark).items():
            schema = self.of(_without_none(hint) if optional and not is_typeddict(kind) else hint, inherited)
            said = texts.get(name) or self._text_of(schema)
            text = described(name, said or "", schema, about, optional=optional)
            default = _default(kind, name)
            if optional and "absent" not in text.lower():
                text = f"{text[:-1]}{_absence(kind, hint, default)}."
            if not said or (optional and is_typeddict(kind) and "absent" not in text.lower()):
                self.unexplained.append(f"{kind.__module__}.{kind.__name__}.{name}")
            properties[name] = {"description": text, **schema, **({} if default is None else {"default": default})}
            if not optional:
                required.append(name)
        if mark and mark.also:
            more = self._record(mark.also, None)
            about = more["description"]
            properties |= more["properties"]
            required = list(dict.fromkeys([*required, *more["required"]]))
        if "schema" in properties:
            properties = {"schema": properties["schema"], **properties}
        return {"description": about, "type": "object", "properties": properties, "required": required}

    def _text_of(self, schema: Mapping[str, Any]) -> str | None:
        """Return what a record says of itself; None: the schema is no reference to one."""
        name = schema.get("$ref", "").rpartition("/")[2]
        return self.definitions.get(name, {}).get("description")


def _fields(kind: type, mark: FieldsOf | None) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field, and whether it may be left out."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        return {name: (hint, name in kind.__optional_keys__) for name, hint in hints.items()}
    if issubclass(kind, msgspec.Struct):
        leaves_out = kind.__struct_config__.omit_defaults and not (mark and mark.is_whole)
        fields = msgspec.structs.fields(kind)
        return {each.encode_name: (hints[each.name], leaves_out and not each.required) for each in fields}
    if dataclasses.is_dataclass(kind):
        return {each.name: (hints[each.name], False) for each in dataclasses.fields(kind)}
    raise TypeError(f"{kind} is no record")


def _absence(kind: type, hint: Any, default: Any) -> str:
    """Return what it means that a field of a record is left out; nothing where the schema has the default anyway."""
    if is_typeddict(kind):
        return ""
    is_setting = issubclass(kind, msgspec.Struct) and kind.__struct_config__.forbid_unknown_fields
    if _takes_none(hint):
        return "; absent: not set" if is_setting else "; absent: unknown"
    if is_setting:
        return ""
    return "; absent: none" if default is None else f"; absent: {json.dumps(default)}"


def _default(kind: type, name: str) -> Any:
    """Return the default of a field that the record's encoder leaves out; None: none, or it is not set."""
    if not issubclass(kind, msgspec.Struct):
        return None
    default = next(each.default for each in msgspec.structs.fields(kind) if each.name == name)
    return default if isinstance(default, str | int | float) else None


def _takes_none(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _takes_none(get_args(hint)[0])
    return type(None) in get_args(hint)


def _without_none(hint: Any) -> Any:
    """Return the type without None: a field that is left out then is never null."""
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(each for each in get_args(hint) if each is not type(None))]  # noqa: UP007 - made of parts
    return hint


def field_texts(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a class, and of the classes that it is made of."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)  # noqa: S101 - it is the source of a class
    found: dict[str, str] = {}
    for name in (base.id for base in tree.bases if isinstance(base, ast.Name)):  # typed dicts forget theirs
        base = getattr(sys.modules[kind.__module__], name, None)
        if inspect.isclass(base) and base.__module__.startswith(("vramtop.", "reference.")):
            found |= field_texts(base)
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            found[field.target.id] = inspect.cleandoc(str(below.value.value))
    return found


def first_paragraph(kind: type) -> str:
    """Return the first paragraph of a class's docstring."""
    return inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]


def plain_text(text: str) -> str:
    """Return a docstring's text as one line in the words of JSON."""
    line = " ".join(text.split()).replace("``", "`")
    for ours, theirs in (("None", "null"), ("True", "true"), ("False", "false")):
        line = re.sub(rf"\b{ours}\b", theirs, line)
    return line if line.endswith((".", "!")) else f"{line}."


def described(name: str, text: str, schema: Mapping[str, Any], about: str, *, optional: bool) -> str:
    """Return the description of a field, with its unit and what null means."""
    line = plain_text(text.partition("\n\n")[0]) if text else ""
    if optional:
        line = re.sub(r"\bnull: ", "absent: ", line)
    is_number = "integer" in str(schema) or "number" in str(schema)
    if is_number and (name.endswith("_bytes") or about.startswith("Bytes ")) and "byte" not in line.lower():
        line = _with_unit(line, "in bytes")
    if is_number and name.endswith("_seconds") and "second" not in line.lower():
        line = _with_unit(line, "in seconds")
    if is_nullable(schema) and "null" not in line:
        line = f"{line[:-1]}; null: unknown."
    return line


def _with_unit(line: str, unit: str) -> str:
    """Return a description with the unit behind what the field is, and before what its absence means."""
    found = re.search(r"[;.] (?:null|absent|empty|0): |\.$", line)
    return f"{line[: found.start()]}, {unit}{line[found.start() :]}" if found else f"{line}, {unit}"


def is_nullable(schema: Mapping[str, Any]) -> bool:
    """Return whether null is a value of a schema."""
    kind = schema.get("type", ())
    return (
        "null" in (kind if isinstance(kind, list) else [kind])
        or None in schema.get("enum", [])
        or any(is_nullable(each) for each in schema.get("anyOf", []))
    )
