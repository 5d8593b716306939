"""Are the keys in the environment that the job will need? Their values are looked at, and never said."""

import netrc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from vramtop.estimator.common.paths import expand_user

from ..context.check import Check, CheckResult
from ..context.check_context import CheckContext
from ..facts.hub_access import find_token, offline_variable, token_file
from .model import find_model_location, is_complete

_REPORTING = {
    "wandb": "WANDB_API_KEY",
    "comet_ml": "COMET_API_KEY",
    "neptune": "NEPTUNE_API_TOKEN",
    "swanlab": "SWANLAB_API_KEY",
}
"""By the target's name; the variables are those that their clients read."""
_WANDB_OFFLINE = {"offline", "disabled", "dryrun"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredKey:
    """A variable that is needed."""

    name: str
    reason: str
    alternative: str | None = None
    """What serves in its place and is there, in words."""


class EnvironmentKeysCheck(Check):
    """Each variable that the job needs is set to something."""

    name = "Environment keys"

    def run(self, context: CheckContext) -> CheckResult:
        """One that is missing is a failure."""
        keys = list(required_keys(context))
        if not keys:
            return self.skips("the job asks for none")
        environ = context.environ
        missing = [key for key in keys if not environ.get(key.name, "").strip() and key.alternative is None]
        present = [_present(key, environ.get(key.name, "")) for key in keys if key not in missing]
        there = "; ".join(present)
        if missing:
            lacks = "; ".join(f"{key.name} is not set ({key.reason})" for key in missing)
            found = f"{lacks}; {there}" if there else lacks
            return self.fails(found, f"set {', '.join(key.name for key in missing)} where the job is started")
        padded = [key.name for key in keys if environ.get(key.name, "") != environ.get(key.name, "").strip()]
        if padded:
            found = f"{there}; {', '.join(padded)} begins or ends with white space"
            return self.warns(found, "set it again without: services refuse such a key")
        return self.passes(there)


class HubTokenCheck(Check):
    """A token for the hub, where it gives the model to some accounts alone."""

    name = "Hub token"
    waits_for = "the hub"

    def run(self, context: CheckContext) -> CheckResult:
        """That there is none is a failure; whether it does is said by the model's access."""
        place = find_model_location(context.job, context.environ)
        if place is None or place.hub_id is None or is_complete(place, context.job):
            return self.skips("nothing is to be fetched from the hub")
        if offline_variable(context.environ):
            return self.skips("the hub may not be asked")
        access, token = context.hub_access(), find_token(context.environ)
        if token is not None:
            return self.passes(f"there is a token ({token[1]})")
        if access.answer in ("gated", "absent", "refused"):
            found = f"HF_TOKEN is not set, nor is there a token in {token_file(context.environ)}"
            return self.fails(found, "set HF_TOKEN where the job is started, or run: hf auth login")
        return self.skips("the hub asks for none" if access.answer == "open" else "the hub does not say")


def required_keys(context: CheckContext) -> Iterator[RequiredKey]:
    """What this job needs, and why."""
    run = context.job.run
    if run.inference_endpoint:
        yield RequiredKey(name=run.inference_key, reason=f"the job asks {_host(run.inference_endpoint)}")
    for target in run.report_to:
        if target in _REPORTING:
            yield RequiredKey(
                name=_REPORTING[target], reason=f"metrics go to {target}", alternative=_instead(target, context)
            )
    yield from (RequiredKey(name=name, reason="the job requires it") for name in run.required_environment)


def _present(key: RequiredKey, value: str) -> str:
    return f"{key.name} is set" if value.strip() else f"{key.name}: {key.alternative} serves"


def _instead(target: str, context: CheckContext) -> str | None:
    """What serves in place of a key."""
    if target != "wandb":
        return None
    mode = context.environ.get("WANDB_MODE", "")
    if mode in _WANDB_OFFLINE:
        return f"WANDB_MODE={mode}"
    host = _host(context.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai")
    path = _netrc_file(context)
    try:
        known = netrc.netrc(str(path)).authenticators(host)
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError):
        return None
    return f"{host} in {path}" if known and known[2] else None


def _netrc_file(context: CheckContext) -> Path:
    """``~/.netrc``, or what NETRC says."""
    named = context.environ.get("NETRC")
    return expand_user(named) if named else context.path("~/.netrc")


def _host(url: str) -> str:
    """The host alone: what stands before it may be a password."""
    try:
        return urlsplit(url if "//" in url else f"//{url}").hostname or "a service"
    except ValueError:
        return "a service"
