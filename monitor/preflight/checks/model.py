"""Checks of the model: whether all of its files are on the disk, and if not, whether they may be downloaded."""

from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.paths import is_folder
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.job.rules.frameworks import FRAMEWORKS
from vramtop.estimator.model.find_config import hub_cache
from vramtop.estimator.model.hub import find_token, offline_variable

from ..check import CheckContext, CheckResult, fails, inconclusive, passes, skips, warns
from ..model_files import ModelFolder, find_model_location, inspect_model
from .folders import free_bytes, nearest_existing_folder

_MAX_SHOWN_FILES = 3


def check_model_files(context: CheckContext) -> CheckResult:
    """All files of the model are in its folder, or in the Hugging Face cache.

    Fail if files are missing from a folder, or from the cache and may not be downloaded.
    """
    location = find_model_location(context.job, context.environ)
    if location is None:
        return skips("the job loads no model from files")
    if not _loads_hub_weights(context):
        return skips(f"{context.job.training.framework} does not load Hugging Face weights itself")
    folder = inspect_model(location, context.job)
    if location.hub_id is None:
        if folder is None or location.folder is None or not is_folder(location.folder):
            return fails(f"{location.folder}: no such folder", "correct model.id")
        if folder.complete:
            return _complete(folder, f"in {location.folder}")
        return fails(f"{location.folder}: {_missing_text(folder)}", "copy or download the model again")
    if folder is not None and folder.complete:
        return _complete(folder, f"in the cache ({location.folder})")
    return _from_cache(context, location.hub_id, folder)


def _from_cache(context: CheckContext, hub_id: str, folder: ModelFolder | None) -> CheckResult:
    missing = f"in the cache: {_missing_text(folder)}" if folder else "is not in the cache"
    found, download = f"{hub_id} {missing}", f"hf download {hub_id}"
    offline = offline_variable(context.environ)
    if offline:
        return fails(f"{found}, and {offline} is set", f"download it where there is a network: {download}")
    need, cache = _download_bytes(context, folder), hub_cache(context.environ)
    free = free_bytes(cache)
    if need and need > free:
        disk = nearest_existing_folder(cache)
        found = (
            f"{found}; about {format_gib(need)} GiB need to be downloaded, and {disk} has only {format_gib(free)} GiB"
        )
        return fails(found, "make room, or set HF_HOME to a larger disk")
    size = f" (about {format_gib(need, digits=2)} GiB)" if need else ""
    return warns(f"{found}: the job will download it{size} when it starts", f"download it before: {download}")


def _complete(folder: ModelFolder, where: str) -> CheckResult:
    files = "1 file" if folder.shards == 1 else f"{folder.shards} shards"
    found = f"{files} of weights, {format_gib(folder.weight_bytes)} GiB, {where}"
    if not folder.tokenizer:
        return warns(f"{found}; no tokenizer", "name a tokenizer to the program, or add its files")
    return passes(found)


def check_model_access(context: CheckContext) -> CheckResult:
    """The hub allows the download of missing files with the token that is set.

    Fail if the hub refuses; it is asked only if files are missing.
    """
    location = find_model_location(context.job, context.environ)
    if location is None or location.hub_id is None or not _loads_hub_weights(context):
        return skips("nothing needs to be downloaded from the hub")
    folder = inspect_model(location, context.job)
    if folder is not None and folder.complete:
        return skips("all files are here, so the hub is not queried")
    access = context.hub_access()
    found = f"{location.hub_id}: {access.message}"
    match access.answer:
        case "open":
            return passes(found)
        case "gated" if find_token(context.environ) is None:
            return fails(found, "ask for access on the model's page, then set HF_TOKEN or run: hf auth login")
        case "gated":
            return fails(found, "ask for access on the model's page with that account")
        case "refused":
            return fails(found, "make a new token with read access, then set HF_TOKEN or run: hf auth login")
        case "absent":
            return fails(found, "correct model.id, or set HF_TOKEN for an account that has access")
        case "offline":
            return skips(found)
        case _:
            return inconclusive(found, "try where there is a network, or download the model beforehand")


def _loads_hub_weights(context: CheckContext) -> bool:
    return FRAMEWORKS[context.job.training.framework].hub_weights


def _missing_text(folder: ModelFolder) -> str:
    """Return what is missing from a folder, in words."""
    parts = []
    if not folder.config:
        parts.append("config.json is missing")
    if not folder.shards:
        parts.append("there are no weights")
    if folder.missing:
        count = f"{len(folder.missing)} of {folder.shards} shards" if folder.shards > 1 else "its weights"
        parts.append(f"{count} missing: {_names_text(folder.missing)}")
    if folder.broken:
        parts.append(f"not whole: {_names_text(folder.broken)}")
    return "; ".join(parts)


def _names_text(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _MAX_SHOWN_FILES} more" if len(names) > _MAX_SHOWN_FILES else ""
    return ", ".join(names[:_MAX_SHOWN_FILES]) + more


def _download_bytes(context: CheckContext, folder: ModelFolder | None) -> int | None:
    """Return about how many bytes are missing: from the index, else two per parameter; None: unknown."""
    if folder is not None and folder.total_bytes is not None:
        return max(0, folder.total_bytes - folder.weight_bytes)
    if folder is not None and folder.shards:
        return None
    try:
        return 2 * context.quick_budget().model.parameters
    except VramtopError:
        return None
