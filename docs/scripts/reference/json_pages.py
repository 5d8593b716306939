"""The schemas of every JSON that the command line prints, and the page about them."""

import json
import re
from typing import Any

from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job, Lora, ModelSpec

from .json_outputs import OUTPUTS
from .json_schema import schema_of
from .markdown import block, bullets, code, codes, page, prose

_WIDTH = 120
_INDENT = "  "
_MANY = 6
"""Words of an enumeration that the page has at most; the schema has all."""
_WITH_FIELDS = ("estimate", "fit", "once")
"""Outputs that scripts read most: the page has their fields. Those of the others are in their schemas."""
_INTRODUCTION = """\
Every command takes `--json`; an error is one sentence on standard error, with the [exit code](exit-codes.md). Each
output has a JSON Schema with the type, unit and meaning of every field."""
_RULES = """\
- Sizes are bytes, whole numbers; names of other units say them (`_seconds`, `_percent`, `_w`, `_c`).
- A field that is `null` or absent is unknown unless the field says otherwise; an unknown figure is never 0. Fields that
  are not among `required` may be absent.
- While `schema`, the version of the format, is the same number, no field is renamed, removed or changed in meaning or
  unit.
- New fields and new words of an `enum` may appear: ignore such fields, and take such a word as `unknown`. Sentences are
  for people, and may change at any time.
- Secrets are masked, unless `--show-secrets` is given."""
_FILES = """\
`vramtop export` and `vramtop serve` print their line when they listen. `vramtop stream`, recordings, exports of the
history and `vramtop measure` with several jobs have one object per line. `vramtop run --fit` and `vramtop wait --exec`
print JSON if they do not start the command."""

_STREAM = """\
`vramtop stream` writes one line per reading until standard input or output is closed ([schema](schemas/stream.json)).
`vramtop --host` also reads a `schema` that differs by one. Times are Unix seconds by the host's clock.

Processes with the same `master` and world size are one run, wherever they are; without one, those with the same
`rendezvous`, then `pod_group`, `ray_job`, `slurm_job` (the job, not the step)."""


def _schema(name: str) -> dict[str, Any]:
    output = OUTPUTS[name]
    return schema_of(output.kind, name=name, title=output.title, apart={Job: "job"})


def schema_files() -> dict[str, str]:
    """Return the text of each schema, by its file's name."""
    found = {name: _schema(name) for name in OUTPUTS} | {"job-file": _job_file()}
    return {f"{name}.json": f"{indented(schema)}\n" for name, schema in found.items()}


def _job_file() -> dict[str, Any]:
    """Return the schema of a job file, for editors: that of a job, but unknown keys are errors."""
    return {**_closed(_schema("job")), "$id": "urn:vramtop:json:job-file", "title": "A job file"}


def _closed(part: Any) -> Any:
    if isinstance(part, list):
        return [_closed(each) for each in part]
    if not isinstance(part, dict):
        return part
    shut = {"additionalProperties": False} if part.get("type") == "object" and "properties" in part else {}
    return {key: _closed(each) for key, each in part.items()} | shut


def json_page() -> str:
    """Return the page about JSON."""
    lines = [
        ": ".join((f"[{output.title}](schemas/{name}.json)", *map(code, output.commands[:1])))
        for name, output in OUTPUTS.items()
    ]
    return page(
        "JSON",
        _INTRODUCTION,
        "## What can be relied on",
        _RULES,
        "## Outputs",
        bullets(lines),
        _FILES,
        "These are the fields of the outputs that scripts read most:",
        *(part for name in _WITH_FIELDS for part in _output(name)),
        "## Lines of a stream",
        _STREAM,
    )


def _output(name: str) -> list[str]:
    """Return the section of an output: its fields, and of an estimate an example."""
    example = ["Shortened:", block(_example(), "json")] if name == "estimate" else []
    return [f"## {OUTPUTS[name].title} {{ #{name} }}", _fields(_schema(name)), *example]


def _example() -> str:
    """Return an estimate, with its most important fields."""
    job = Job(model=ModelSpec(id="llama-3.1-8b"), lora=Lora(quantization="nf4-double"))
    whole = json.loads(json.dumps(estimate(job, method="formula").to_json()))
    return indented({key: whole[key] for key in ("schema", "method", "peak", "steady_device_bytes")})


_UNSAID = re.compile(r", in bytes(?=[;.])|; (absent|null): unknown(?=\.$)")
"""Said once on each page, for all of its fields: sizes are bytes, what is absent is unknown."""


def _fields(schema: dict[str, Any]) -> str:
    """Return the list of the fields of an object."""
    return bullets(
        f"{code(key)} ({_type(facts)}): {prose(_UNSAID.sub('', facts['description']))}"
        for key, facts in schema["properties"].items()
        if key != "schema"
    )


def _type(facts: dict[str, Any]) -> str:
    """Return the type of a field in a few words; null is in its description."""
    if "anyOf" in facts:
        return " or ".join(dict.fromkeys(filter(None, map(_type, facts["anyOf"]))))
    if "enum" in facts:
        words = [word for word in facts["enum"] if word is not None]
        told = f"`{words[0]}`" in facts.get("description", "")
        return "word" if told or len(words) > _MANY else codes(words)
    if "const" in facts:
        return code(facts["const"])
    if "$ref" in facts:
        return "object"
    kinds = facts.get("type", "any")
    names = [kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "null"]
    if names == ["array"]:
        inner = _type(facts["items"]) if isinstance(facts.get("items"), dict) else ""
        return f"array: {inner}" if inner else "array"
    return " or ".join(names)


def indented(value: Any, margin: str = "") -> str:
    """Return JSON in which what fits on a line is on one; every line but the first begins with ``margin``."""
    line = json.dumps(value, ensure_ascii=False)
    if len(margin) + len(line) <= _WIDTH or not isinstance(value, dict | list) or not value:
        return line
    deeper = margin + _INDENT
    if isinstance(value, list):
        return "[\n" + ",\n".join(f"{deeper}{indented(part, deeper)}" for part in value) + f"\n{margin}]"
    parts = (f"{deeper}{json.dumps(key)}: {indented(part, deeper)}" for key, part in value.items())
    return "{\n" + ",\n".join(parts) + f"\n{margin}}}"
