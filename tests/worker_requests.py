"""Requests to the worker, of which a test states what matters to it."""

from typing import Any

from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.trace.traced_step import trace_request

_PLAIN = {"precision": "bf16-mixed", "optimizer": "adamw"}
_NO_LOOP = ("optimizer", "compile")
"""Settings of a message that are not the job's: a class that is no row of a table, and a loop that does not compile."""
_ADAPTERS = {"rank": 16, "targets": ["q_proj", "v_proj"]}


def complete(message: dict[str, Any]) -> dict[str, Any]:
    """Return a request for a trace with all keys that it leaves out: those of a job of the Trainer."""
    training = {name: value for name, value in message.get("training", {}).items() if name not in _NO_LOOP}
    tables = {"training": {**_PLAIN, **training}, "parallel": message.get("parallel", {})}
    model = {"config": {"model_type": "llama"}}
    job = job_from_mapping({"model": model, **tables}, where="test")
    plain = {**trace_request(job, resolve_model(job.model)), "config": {}, "optimizer": None}
    for name in ("training", "parallel", "loop", "older"):
        tables[name] = {**plain[name], **message.get(name, {})}
    lora = {"lora": {**_ADAPTERS, **message["lora"]}} if message.get("lora") else {}
    return {**plain, **message, **tables, **lora}
