"""Check that the Python which runs the job has the libraries that the job needs, in compatible versions.

Lower bounds: the extras in the metadata of the installed transformers, and what its code requires besides
(utils/import_utils.py of transformers 5).
"""

from collections.abc import Iterator

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from vramtop.estimator.job.job import Job
from vramtop.estimator.job.rules.frameworks import FRAMEWORKS
from vramtop.estimator.job.rules.optimizers.table import OPTIMIZERS
from vramtop.estimator.job.rules.strategies import STRATEGIES
from vramtop.estimator.trace.installed_packages import InstalledPackages

from ..check import PYTHON_ELSEWHERE, CheckContext, CheckResult, fails, inconclusive, passes, skips, warns

_JOB_VERSIONS = ("torch", "transformers", "bitsandbytes", "litgpt", "torchtitan")
"""Libraries whose version a job may state."""
_TRANSFORMERS_5_BOUNDS = {"bitsandbytes": ">=0.46.1", "flash-attn": ">=2.3.3", "liger-kernel": ">=0.3.0"}


class RequiredLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """A library that the job needs."""

    alternatives: tuple[str, ...]
    """Distributions, of which one is enough; the first is the usual one."""
    reason: str


def check_libraries(context: CheckContext) -> CheckResult:
    """Each required library is installed, in a version that transformers accepts.

    Fail if a library is missing or incompatible; warn if its version differs from the job's.
    """
    if context.python_is_elsewhere:
        return skips(PYTHON_ELSEWHERE)
    installed, python = context.packages(), context.interpreter
    required = list(required_libraries(context.job))
    missing = [each for each in required if not any(name in installed.versions for name in each.alternatives)]
    if missing and not python.is_certain:
        names = ", ".join(dict.fromkeys(each.alternatives[0] for each in missing))
        return inconclusive(f"{python.path} ({python.origin}) has no {names}", "name the job's with --python")
    present = [name for each in required for name in each.alternatives if name in installed.versions]
    versions = ", ".join(dict.fromkeys(f"{name} {installed.versions[name]}" for name in present))
    if missing:
        names = " ".join(dict.fromkeys(each.alternatives[0] for each in missing))
        there = f"; there: {versions}" if versions else ""
        return fails(f"{_missing_text(missing)}{there}", f"{python.path} -m pip install {names}")
    incompatible = list(_incompatible(installed, present))
    if incompatible:
        return fails(f"{'; '.join(incompatible)}; there: {versions}", "install versions that go together")
    differing = list(_differing(context.job, installed))
    if differing:
        advice = "correct [software], or install those versions"
        return warns(f"{'; '.join(differing)}; there: {versions}", advice)
    return passes(f"Python {installed.python} ({python.path}): {versions}")


def _missing_text(missing: list[RequiredLibrary]) -> str:
    reasons: dict[tuple[str, ...], list[str]] = {}
    for each in missing:
        reasons.setdefault(each.alternatives, []).append(each.reason)
    return "; ".join(f"{' or '.join(names)} is missing ({', '.join(why)})" for names, why in reasons.items())


def _incompatible(installed: InstalledPackages, present: list[str]) -> Iterator[str]:
    """Yield a sentence for each library that the installed transformers does not accept."""
    transformers = installed.versions.get("transformers")
    if transformers is None:
        return
    extra_bounds = _extra_bounds(installed)
    for name in dict.fromkeys(present):
        version, bounds = installed.versions[name], extra_bounds.get(name, "")
        if name in _TRANSFORMERS_5_BOUNDS and _parse(transformers).major >= 5:
            bounds = f"{bounds},{_TRANSFORMERS_5_BOUNDS[name]}".lstrip(",")
        if not SpecifierSet(bounds).contains(_parse(version).base_version):  # a pre-release counts as its release
            yield f"transformers {transformers} takes {name} {bounds}, not {version}"


def _extra_bounds(installed: InstalledPackages) -> dict[str, str]:
    """Return the bounds on libraries in the metadata of transformers, from the extra of each library's own name."""
    bounds: dict[str, str] = {}
    for text in installed.requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        name = canonicalize_name(requirement.name)
        own_extras = {f'extra == "{name}"', f'extra == "{name.partition("-")[0]}"'}
        if str(requirement.marker) in own_extras:
            bounds.setdefault(name, str(requirement.specifier))
    return bounds


def _differing(job: Job, installed: InstalledPackages) -> Iterator[str]:
    """Yield a sentence for each library whose version differs from the one that the job states."""
    for name in _JOB_VERSIONS:
        stated, here = getattr(job.software, name), installed.versions.get(name)
        if stated and here:
            release = _parse(stated).release
            if _parse(here).release[: len(release)] != release:
                yield f"the job is for {name} {stated}, and {here} is installed"


def _parse(version: str) -> Version:
    try:
        return Version(version)
    except InvalidVersion:  # a source checkout may call itself anything
        return Version("0")


_ATTENTION_LIBRARIES = {
    "flash_attention_2": ("flash-attn", "kernels"),
    "flash_attention_3": ("flash-attn-3", "kernels"),
}
"""Distributions by ``model.attention``, of which one is enough."""
_SETTING_LIBRARIES = ("peft", "bitsandbytes", "liger-kernel", "unsloth", "vllm", "sglang")
"""Distributions that single settings need."""
DISTRIBUTIONS = tuple(
    dict.fromkeys(
        (
            *(name for row in FRAMEWORKS.values() for name in (*row.libraries, *row.training_libraries)),
            *(name for row in STRATEGIES.values() for name in row.libraries),
            *(name for names in _ATTENTION_LIBRARIES.values() for name in names),
            *(
                name
                for row in OPTIMIZERS.values()
                for name in (*row.libraries, *row.trainer_libraries, *row.other_libraries)
            ),
            *_SETTING_LIBRARIES,
        )
    )
)
"""All distributions that ``required_libraries`` may name."""


def required_libraries(job: Job) -> Iterator[RequiredLibrary]:
    """Yield the libraries that a job needs, each with the setting that needs it."""
    training, framework = job.training, FRAMEWORKS[job.training.framework]
    strategy, optimizer = STRATEGIES[job.parallel.strategy], OPTIMIZERS.get(job.training.optimizer)
    if job.is_served:
        engine = job.inference.engine if job.inference else ""
        for library in ("torch", engine):
            yield RequiredLibrary(alternatives=(library,), reason=f"engine = {engine}")
        return
    trains, uses_trainer = training.mode == "train", framework.name == "transformers"
    for name in (*framework.libraries, *(framework.training_libraries if trains else ())):
        yield RequiredLibrary(alternatives=(name,), reason=f"framework = {framework.name}")
    if job.lora and uses_trainer:
        yield RequiredLibrary(alternatives=("peft",), reason="LoRA adapters")
    if job.lora and job.lora.quantization != "none":
        yield RequiredLibrary(alternatives=("bitsandbytes",), reason=f"quantization = {job.lora.quantization}")
    if trains and optimizer is not None:
        for name in (*optimizer.libraries, *(optimizer.trainer_libraries if uses_trainer else ())):
            alternatives = (name, *optimizer.other_libraries)
            yield RequiredLibrary(alternatives=alternatives, reason=f"optimizer = {optimizer.name}")
    if trains and job.rollout is not None and job.rollout.engine == "vllm":
        yield RequiredLibrary(alternatives=("vllm",), reason="rollout.engine = vllm")
    if job.model.attention in _ATTENTION_LIBRARIES:
        alternatives = _ATTENTION_LIBRARIES[job.model.attention]
        yield RequiredLibrary(alternatives=alternatives, reason=f"attention = {job.model.attention}")
    if strategy.libraries and framework.name != "megatron":  # Megatron-LM brings its own
        yield RequiredLibrary(alternatives=strategy.libraries, reason=f"strategy = {strategy.name}")
    if trains and training.fused_kernels:
        kernels = ", ".join(training.fused_kernels)
        yield RequiredLibrary(alternatives=("liger-kernel", "unsloth"), reason=f"fused_kernels = {kernels}")
    elif training.loss in ("fused-linear", "fused-log-probs") and uses_trainer:
        yield RequiredLibrary(alternatives=("liger-kernel",), reason=f"loss = {training.loss}")
