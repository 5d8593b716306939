"""The schemas of every JSON that the command line prints, and the page about them."""

import json
from collections import Counter
from typing import Any

from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job, Lora, ModelSpec

from .json_outputs import OUTPUTS
from .json_schema import schema_of
from .markdown import block, bullets, code, page

_WIDTH = 120
_INDENT = "  "
_INTRODUCTION = """\
Every command takes `--json`; an error is one sentence on standard error, with the [exit code](commands.md#exit-codes).
The JSON Schema of each output has the type, unit and meaning of every field."""
_RULES = """\
- Sizes are whole bytes; names of other units say them (`_seconds`, `_percent`, `_w`, `_c`).
- A field that is `null` or absent is unknown unless its description says otherwise; an unknown figure is never 0. Only
  `required` fields are always there.
- While `schema`, the version of the format, stays the same, no field is renamed, removed or changed in meaning or unit.
- New fields and new words of an `enum` may appear: ignore such fields, and take such a word as `unknown`. Sentences are
  for people, and may change.
- Secrets are masked, unless `--show-secrets` is given."""
_FILES = """\
`vramtop export` and `vramtop serve` print their line when they listen. `vramtop stream`, recordings, exports of the
history and `vramtop measure` with several jobs have one object per line. `vramtop run --fit` and `vramtop wait --exec`
print JSON if they do not start the command."""

_STREAM = """\
`vramtop stream` writes one line per reading until standard input or output is closed ([schema](schemas/stream.json)).
`vramtop --host` also reads a `schema` that differs by one. Times are Unix seconds by the host's clock.

Processes with the same `master` and world size are one run, wherever they are."""


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
    printed = Counter(output.commands[:1] for output in OUTPUTS.values())
    lines = []
    for name, output in OUTPUTS.items():
        says_all = output.commands and printed[output.commands[:1]] == 1
        lines.append(f"[{code(output.commands[0]) if says_all else output.title}](schemas/{name}.json)")
    return page(
        "JSON",
        _INTRODUCTION,
        "## What can be relied on",
        _RULES,
        "## Outputs",
        bullets(lines),
        _FILES,
        "## An estimate, shortened",
        block(_example(), "json"),
        "## Lines of a stream",
        _STREAM,
    )


def _example() -> str:
    """Return an estimate, with its most important fields."""
    job = Job(model=ModelSpec(id="llama-3.1-8b"), lora=Lora(quantization="nf4-double"))
    whole = json.loads(json.dumps(estimate(job, method="formula").to_json()))
    return indented({key: whole[key] for key in ("schema", "method", "peak", "steady_device_bytes")})


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
