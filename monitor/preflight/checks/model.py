"""Is the model here, and if not: may it be fetched?"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.paths import expand_user, is_folder
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.common.untrusted_files import read_file
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file import names_user_code
from vramtop.estimator.model.find_config import find_built_in, hub_cache

from ..context.check import Check, CheckResult
from ..context.check_context import CheckContext
from ..facts.disk_space import free_bytes, nearest_existing_folder
from ..facts.hub_access import offline_variable
from ..facts.model_files import ModelFolder, inspect_model_folder

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_OWN_FORMATS = ("torchtitan", "megatron")
"""They start from nothing, or from checkpoints of their own."""
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLocation:
    """Where a job's model is to come from."""

    folder: Path | None
    """With its files; None: not in the cache."""
    hub_id: str | None
    """None: a folder of the user's own."""


def find_model_location(job: Job, environ: Mapping[str, str]) -> ModelLocation | None:
    """Where the weights come from; None: the job names none (its config is written out, or it is code)."""
    name = job.model.id
    if name is None or job.model.config is not None or names_user_code(name):
        return None
    path = expand_user(name)
    if is_folder(path) or name.startswith((".", "/", "~")) or name.endswith(".json"):
        return ModelLocation(folder=path.parent if name.endswith(".json") else path, hub_id=None)
    cached = _snapshot(name, environ)
    built_in = find_built_in(name) if cached is None and "/" not in name else None
    hub_id = built_in.id if built_in else name
    return ModelLocation(folder=cached or _snapshot(hub_id, environ), hub_id=hub_id)


class ModelFilesCheck(Check):
    """All files of the model: in its folder, or in the Hugging Face cache."""

    name = "Model files"
    waits_for = "the file system"
    decisive = True

    def run(self, context: CheckContext) -> CheckResult:
        """Missing from a folder is a failure; from the cache, only where nothing may be fetched."""
        place = find_model_location(context.job, context.environ)
        if place is None:
            return self.skips("the job names no model that would be loaded from files")
        if context.job.training.framework in _OWN_FORMATS:
            return self.skips(f"{context.job.training.framework} loads no Hugging Face weights by itself")
        found = None if place.folder is None else inspect_model_folder(place.folder, single=_singles(context.job))
        if place.hub_id is None:
            return self._in_folder(place, found)
        if found is not None and found.complete:
            return self._whole(found, f"in the cache ({place.folder})")
        return self._from_cache(context, place.hub_id, found)

    def _in_folder(self, place: ModelLocation, found: ModelFolder | None) -> CheckResult:
        if found is None or place.folder is None or not is_folder(place.folder):
            return self.fails(f"{place.folder}: no such folder", "correct model.id")
        if found.complete:
            return self._whole(found, f"in {place.folder}")
        return self.fails(f"{place.folder}: {_lacks(found)}", "copy or download the model again")

    def _from_cache(self, context: CheckContext, hub_id: str, found: ModelFolder | None) -> CheckResult:
        lacks = f"{hub_id} is not in the cache" if found is None else f"{hub_id} in the cache: {_lacks(found)}"
        fetch = f"hf download {hub_id}"
        forbids = offline_variable(context.environ)
        if forbids:
            return self.fails(f"{lacks}, and {forbids} is set", f"fetch it where there is a network: {fetch}")
        need, cache = _to_fetch(context, found), hub_cache(context.environ)
        free = free_bytes(cache)
        if need and need > free:
            where = nearest_existing_folder(cache)
            space = f"{lacks}; about {format_gib(need)} GiB are to be fetched, and {where} has room for"
            return self.fails(f"{space} {format_gib(free)}", "make room, or set HF_HOME to a larger disk")
        size = f" (about {format_gib(need, digits=2)} GiB)" if need else ""
        return self.warns(f"{lacks}: the job will fetch it{size} when it starts", f"fetch it before: {fetch}")

    def _whole(self, found: ModelFolder, where: str) -> CheckResult:
        files = "1 file" if found.shards == 1 else f"{found.shards} shards"
        words = f"{files} of weights, {format_gib(found.weight_bytes)} GiB, {where}"
        if not found.tokenizer:
            return self.warns(f"{words}; no tokenizer", "name a tokenizer to the program, or add its files")
        return self.passes(words)


class ModelAccessCheck(Check):
    """Whether the hub gives what is missing, with the token that is here."""

    name = "Model access"
    waits_for = "the hub"
    decisive = True

    def run(self, context: CheckContext) -> CheckResult:
        """The hub is asked only where something is missing."""
        place = find_model_location(context.job, context.environ)
        if place is None or place.hub_id is None or context.job.training.framework in _OWN_FORMATS:
            return self.skips("nothing is to be fetched from the hub")
        if is_complete(place, context.job):
            return self.skips("all files are here, so that the hub is not asked")
        access = context.hub_access()
        found = f"{place.hub_id}: {access.message}"
        match access.answer:
            case "open":
                return self.passes(found)
            case "gated" if access.token_from is None:
                return self.fails(found, "ask for access on the model's page, then set HF_TOKEN or run: hf auth login")
            case "gated":
                return self.fails(found, "ask for access on the model's page with that account")
            case "refused":
                return self.fails(found, "make a new token with read access, then set HF_TOKEN or run: hf auth login")
            case "absent":
                return self.fails(found, "correct model.id, or set HF_TOKEN of an account that may see it")
            case "offline":
                return self.skips(found)
            case _:
                return self.inconclusive(found, "try where there is a network, or fetch the model beforehand")


def is_complete(place: ModelLocation, job: Job) -> bool:
    """Nothing of the model has to be fetched."""
    return place.folder is not None and inspect_model_folder(place.folder, single=_singles(job)).complete


def _singles(job: Job) -> tuple[str, ...]:
    return ("lit_model.pth",) if job.training.framework == "litgpt" else ()


def _snapshot(name: str, environ: Mapping[str, str]) -> Path | None:
    """The snapshot of ``main`` in the cache, which is what libraries take when they are told nothing else."""
    if not _HUB_ID.fullmatch(name):
        return None
    repository = hub_cache(environ) / f"models--{name.replace('/', '--')}"
    try:
        revision = read_file(repository / "refs" / "main").decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    folder = repository / "snapshots" / revision
    return folder if re.fullmatch(r"[\w.-]+", revision) and is_folder(folder) else None


def _lacks(found: ModelFolder) -> str:
    """What is not there, in words."""
    parts = []
    if not found.config:
        parts.append("config.json is missing")
    if not found.shards:
        parts.append("there are no weights")
    if found.missing:
        count = f"{len(found.missing)} of {found.shards} shards" if found.shards > 1 else "its weights"
        parts.append(f"{count} missing: {_some(found.missing)}")
    if found.broken:
        parts.append(f"not whole: {_some(found.broken)}")
    return "; ".join(parts)


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _to_fetch(context: CheckContext, found: ModelFolder | None) -> int | None:
    """About how many bytes are missing: as the index says, else two for each parameter; None: not known."""
    if found is not None and found.total_bytes is not None:
        return max(0, found.total_bytes - found.weight_bytes)
    if found is not None and found.shards:
        return None
    try:
        return 2 * context.quick_budget().model.parameters
    except VramtopError:
        return None
