"""Check of the API keys that the job needs. Their values are tested, and never shown."""

import netrc
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from vramtop.estimator.common.paths import expand_user

from ..check import CheckContext, CheckResult, fails, passes, skips, warns

_REPORTING_KEYS = {
    "wandb": "WANDB_API_KEY",
    "comet_ml": "COMET_API_KEY",
    "neptune": "NEPTUNE_API_TOKEN",
    "swanlab": "SWANLAB_API_KEY",
}
"""Variables that the clients of the reporting targets read."""
_WANDB_OFFLINE_MODES = {"offline", "disabled", "dryrun"}


class RequiredKey(msgspec.Struct, frozen=True, kw_only=True):
    """An environment variable that the job needs."""

    name: str
    reason: str
    alternative: str | None = None
    """What replaces the variable and exists, in words."""


def check_environment_keys(context: CheckContext) -> CheckResult:
    """Every environment variable that the job needs is set.

    Fail if one is missing; warn if one has white space around it.
    """
    keys = list(required_keys(context))
    if not keys:
        return skips("the job needs none")
    values = {key.name: context.environ.get(key.name, "") for key in keys}
    missing = [key for key in keys if not values[key.name].strip() and key.alternative is None]
    present = "; ".join(
        f"{key.name} is set" if values[key.name].strip() else f"{key.name}: {key.alternative} serves"
        for key in keys
        if key not in missing
    )
    if missing:
        found = "; ".join(f"{key.name} is not set ({key.reason})" for key in missing)
        names = ", ".join(key.name for key in missing)
        return fails(f"{found}; {present}" if present else found, f"set {names} where the job is started")
    padded = [name for name, value in values.items() if value != value.strip()]
    if padded:
        found = f"{present}; {', '.join(padded)} begins or ends with white space"
        return warns(found, "set it again without white space: services reject such a key")
    return passes(present)


def required_keys(context: CheckContext) -> Iterator[RequiredKey]:
    """Yield the variables that this job needs, each with its reason."""
    run = context.job.run
    if run.inference_endpoint:
        yield RequiredKey(name=run.inference_key, reason=f"the job asks {_host(run.inference_endpoint)}")
    for target in run.report_to:
        if target in _REPORTING_KEYS:
            yield RequiredKey(
                name=_REPORTING_KEYS[target],
                reason=f"metrics go to {target}",
                alternative=_wandb_alternative(context) if target == "wandb" else None,
            )
    yield from (RequiredKey(name=name, reason="the job requires it") for name in run.required_environment)


def _wandb_alternative(context: CheckContext) -> str | None:
    """Return what replaces wandb's key, in words: an offline mode, or an entry of the netrc file."""
    mode = context.environ.get("WANDB_MODE", "")
    if mode in _WANDB_OFFLINE_MODES:
        return f"WANDB_MODE={mode}"
    host = _host(context.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai")
    named = context.environ.get("NETRC")
    path = expand_user(named) if named else context.path("~/.netrc")
    try:
        known = netrc.netrc(str(path)).authenticators(host)
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return None
    return f"{host} in {path}" if known and known[2] else None


def _host(url: str) -> str:
    """Return the host of a URL alone, because the user part may contain a password."""
    try:
        return urlsplit(url if "//" in url else f"//{url}").hostname or "a service"
    except ValueError:
        return "a service"
