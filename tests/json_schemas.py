"""Holds JSON that a command printed to its published schema."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

SCHEMAS = Path(__file__).parents[1] / "docs" / "reference" / "schemas"


def valid_json(name: str, text: str | bytes) -> Any:
    """Return the value of a JSON text, which must have every required field of a schema, and no field without one.

    Readers must ignore fields that they do not know, so the published schemas allow others; here they are failures,
    since nothing documents them.

    Args:
        name: of the schema: ``fit``.
        text: what the command printed.
    """
    value = json.loads(text)
    require_valid(name, value)
    return value


def require_valid(name: str, value: Any) -> None:
    """Hold a value to a schema, see ``valid_json``."""
    errors = [f"{error.json_path}: {error.message[:300]}" for error in _validator(name).iter_errors(value)]
    assert not errors, f"this is no {name}.json (if it is meant, make reference writes the schema): {errors[:5]}"


@cache
def schema(name: str) -> Any:
    """Return a published schema."""
    return json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))


def closed(part: Any) -> Any:
    """Return a schema that allows only the fields that it describes; parts with a schema of their own refer to it."""
    if isinstance(part, list):
        return [closed(each) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("$comment", "").endswith(".json"):
        return {"$ref": f"urn:vramtop:json:{part['$comment'].removesuffix('.json')}"}
    shut = {"additionalProperties": False} if part.get("type") == "object" and "properties" in part else {}
    return shut | {key: closed(each) for key, each in part.items()}


@cache
def _validator(name: str) -> Draft202012Validator:
    job = closed(schema("job"))
    registry = Registry().with_resource(job["$id"], Resource.from_contents(job))
    return Draft202012Validator(closed(schema(name)), registry=registry)
