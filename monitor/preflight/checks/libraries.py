"""Does the Python that runs the job have the libraries that the job needs, in versions that do?

Lowest versions: what the installed transformers asks for by itself (its metadata's extras), and what its code asks for
besides (utils/import_utils.py of transformers 5).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from vramtop.estimator.job.job import Job
from vramtop.estimator.trace.installed_packages import InstalledPackages

from ..context.check import Check, CheckResult
from ..context.check_context import CheckContext

_FRAMEWORKS = {
    "transformers": ("torch", "transformers", "accelerate"),
    "torchtitan": ("torch", "torchtitan"),
    "torchtune": ("torch", "torchtune"),
    "litgpt": ("torch", "litgpt"),
    "megatron": ("torch", "megatron-core"),
}
_STATED = ("torch", "transformers", "bitsandbytes", "litgpt", "torchtitan")
"""Versions that a job may state."""
_LOWEST = {"bitsandbytes": "0.46.1", "flash-attn": "2.3.3", "liger-kernel": "0.3.0"}
"""Under transformers 5."""
_WISH = re.compile(r'([\w.-]+)\s*([<>=!~,\d.\sa-z*]*?)\s*;\s*extra\s*==\s*"([\w-]+)"')
_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*(\d+(?:\.\d+)*)")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredLibrary:
    """A library that the job needs."""

    alternatives: tuple[str, ...]
    """Distributions; one of them is enough. The first is the usual one."""
    reason: str


def required_libraries(job: Job) -> Iterator[RequiredLibrary]:
    """What a job needs, and why."""
    training, strategy = job.training, job.parallel.strategy
    if job.served_by_vllm:
        yield RequiredLibrary(alternatives=("torch",), reason="engine = vllm")
        yield RequiredLibrary(alternatives=("vllm",), reason="engine = vllm")
        return
    for name in _FRAMEWORKS[training.framework]:
        if name != "accelerate" or training.mode == "train":
            yield RequiredLibrary(alternatives=(name,), reason=f"framework = {training.framework}")
    trainer = training.framework == "transformers"
    if job.lora and trainer:
        yield RequiredLibrary(alternatives=("peft",), reason="LoRA adapters")
    if job.lora and job.lora.quantization != "none":
        yield RequiredLibrary(alternatives=("bitsandbytes",), reason=f"quantization = {job.lora.quantization}")
    if training.mode == "train" and (
        _is_of_bitsandbytes(training.optimizer) or (training.optimizer == "lion" and trainer)
    ):
        yield RequiredLibrary(alternatives=("bitsandbytes",), reason=f"optimizer = {training.optimizer}")
    if job.model.attention == "flash_attention_2":
        yield RequiredLibrary(alternatives=("flash-attn", "kernels"), reason="attention = flash_attention_2")
    if job.model.attention == "flash_attention_3":
        yield RequiredLibrary(alternatives=("flash-attn-3", "kernels"), reason="attention = flash_attention_3")
    if strategy.startswith("zero") and training.framework != "megatron":
        yield RequiredLibrary(alternatives=("deepspeed",), reason=f"strategy = {strategy}")
    if strategy == "megatron-fsdp" and training.framework != "megatron":
        yield RequiredLibrary(alternatives=("megatron-fsdp", "megatron-core"), reason=f"strategy = {strategy}")
    if training.loss == "fused-linear" and trainer:
        yield RequiredLibrary(alternatives=("liger-kernel",), reason="loss = fused-linear")


DISTRIBUTIONS = (
    *("torch", "transformers", "accelerate", "peft", "bitsandbytes", "flash-attn", "flash-attn-3", "kernels"),
    *("deepspeed", "megatron-fsdp", "megatron-core", "liger-kernel", "torchtitan", "torchtune", "litgpt", "vllm"),
)
"""All that ``required_libraries`` may name."""


class LibrariesCheck(Check):
    """Each library is installed, in a version that its users take."""

    name = "Libraries"
    waits_for = "the job's Python to say what it has"

    def run(self, context: CheckContext) -> CheckResult:
        """One that is missing or too old is a failure; one that the job states otherwise, a warning."""
        found, wanted, python = context.packages(), list(required_libraries(context.job)), context.interpreter
        missing = [need for need in wanted if not any(name in found.versions for name in need.alternatives)]
        if missing and not python.is_certain:
            lacks = ", ".join(dict.fromkeys(need.alternatives[0] for need in missing))
            return self.inconclusive(f"{python.path} ({python.origin}) has no {lacks}", "name the job's with --python")
        here = [name for need in wanted for name in need.alternatives if name in found.versions]
        shown = ", ".join(dict.fromkeys(f"{name} {found.versions[name]}" for name in here))
        if missing:
            lacks = "; ".join(
                f"{' or '.join(names)} is missing "
                f"({', '.join(need.reason for need in missing if need.alternatives == names)})"
                for names in dict.fromkeys(need.alternatives for need in missing)
            )
            names = " ".join(dict.fromkeys(need.alternatives[0] for need in missing))
            there = f"; there: {shown}" if shown else ""
            return self.fails(f"{lacks}{there}", f"{python.path} -m pip install {names}")
        wrong = list(_wrong(found, here))
        if wrong:
            return self.fails(f"{'; '.join(wrong)}; there: {shown}", "install versions that go together")
        other = list(_otherwise(context.job, found))
        if other:
            return self.warns(f"{'; '.join(other)}; there: {shown}", "correct [software], or install those versions")
        return self.passes(f"Python {found.python} ({python.path}): {shown}")


def _is_of_bitsandbytes(optimizer: str) -> bool:
    return optimizer.endswith("8bit") or optimizer.startswith("paged")


def _wrong(found: InstalledPackages, here: list[str]) -> Iterator[str]:
    """What the installed transformers does not take."""
    transformers = found.versions.get("transformers")
    if transformers is None:
        return
    for name in dict.fromkeys(here):
        version = found.versions[name]
        bounds = _bounds(found, name)
        if name in _LOWEST and _numbers(transformers) >= (5,):
            bounds = f"{bounds},>={_LOWEST[name]}".lstrip(",")
        if not satisfies_bounds(version, bounds):
            yield f"transformers {transformers} takes {name} {bounds}, not {version}"


def _bounds(found: InstalledPackages, name: str) -> str:
    """What the metadata ask of a library, where it is an extra by its own name."""
    for wish in found.wishes:
        match = _WISH.fullmatch(wish.strip())
        if match and match[1].lower().replace("_", "-") == name and match[3] in (name, name.partition("-")[0]):
            return match[2].replace(" ", "")
    return ""


def satisfies_bounds(version: str, bounds: str) -> bool:
    """Whether a version lies within bounds such as ``>=1.1.0,<2``; pre-releases count as what they precede."""
    have = _numbers(version)
    return all(_holds(have, sign, _numbers(bound)) for sign, bound in _BOUND.findall(bounds))


def _holds(have: tuple[int, ...], sign: str, bound: tuple[int, ...]) -> bool:
    length = max(len(have), len(bound))
    left, right = (numbers + (0,) * (length - len(numbers)) for numbers in (have, bound))
    return {
        ">=": left >= right,
        "<=": left <= right,
        "==": left == right,
        "!=": left != right,
        "<": left < right,
        ">": left > right,
    }[sign]


def _numbers(version: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` is (2, 13, 0)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, _NUMBER.findall(match[1]))) if match else ()


def _otherwise(job: Job, found: InstalledPackages) -> Iterator[str]:
    """Versions that the job states, and that are others here."""
    for name in _STATED:
        stated, here = getattr(job.software, name), found.versions.get(name)
        if stated and here and _numbers(here)[: len(_numbers(stated))] != _numbers(stated):
            yield f"the job is for {name} {stated}, and {here} is installed"
