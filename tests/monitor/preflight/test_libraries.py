"""Libraries that a job needs, in the Python that runs it."""

from pathlib import Path
from typing import Any

import pytest

from vramtop.estimator.job.job import Inference, Job, Lora, ModelSpec, Parallel, Rollout, Software, Training
from vramtop.estimator.trace.installed_packages import InstalledPackages
from vramtop.monitor.preflight.checks.libraries import (
    DISTRIBUTIONS,
    check_libraries,
    required_libraries,
)
from vramtop.monitor.preflight.job_launch import JobInterpreter

TRAINER = {"torch": "2.13.0+cu128", "transformers": "5.23.0", "accelerate": "1.15.0"}
REQUIREMENTS = ('accelerate>=1.1.0; extra == "torch"', 'accelerate>=1.1.0; extra == "accelerate"')


def job(**tables: Any) -> Job:
    return Job(model=tables.pop("model", ModelSpec(id="gpt2")), **tables)


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (job(), {"torch", "transformers", "accelerate"}),
        (job(lora=Lora()), {"torch", "transformers", "accelerate", "peft"}),
        (job(lora=Lora(quantization="nf4")), {"torch", "transformers", "accelerate", "peft", "bitsandbytes"}),
        (job(training=Training(optimizer="paged-adamw")), {"torch", "transformers", "accelerate", "bitsandbytes"}),
        (job(training=Training(optimizer="adamw-8bit", mode="inference")), {"torch", "transformers"}),
        (job(training=Training(mode="inference"), inference=Inference(engine="vllm")), {"torch", "vllm"}),
        (job(training=Training(loss="fused-linear")), {"torch", "transformers", "accelerate", "liger-kernel"}),
        (job(training=Training(loss="fused-log-probs")), {"torch", "transformers", "accelerate", "liger-kernel"}),
        (job(rollout=Rollout(engine="vllm")), {"torch", "transformers", "accelerate", "vllm"}),
        (job(rollout=Rollout()), {"torch", "transformers", "accelerate"}),
        (job(parallel=Parallel(strategy="zero3")), {"torch", "transformers", "accelerate", "deepspeed"}),
        (job(model=ModelSpec(attention="flash_attention_2")), {"torch", "transformers", "accelerate", "flash-attn"}),
        (job(training=Training(framework="torchtune", optimizer="adamw-8bit")), {"torch", "torchtune", "bitsandbytes"}),
        (job(training=Training(framework="torchtitan", loss="fused-linear")), {"torch", "torchtitan"}),
        (job(training=Training(fused_kernels=["norm"])), {"torch", "transformers", "accelerate", "liger-kernel"}),
    ],
)
def test_required_libraries_follow_from_the_job(asked: Job, names: set[str]) -> None:
    assert {need.alternatives[0] for need in required_libraries(asked)} == names
    assert {name for need in required_libraries(asked) for name in need.alternatives} <= set(DISTRIBUTIONS)


def found_in(make_context, asked: Job, versions: dict[str, str], *, sure: bool = True) -> Any:
    there = InstalledPackages(python="3.12.1", versions=versions, modules=(), requirements=REQUIREMENTS)
    python = JobInterpreter(path=Path("/opt/env/bin/python"), origin="VIRTUAL_ENV", is_certain=sure)
    return check_libraries(make_context(asked, packages=lambda: there, interpreter=python))


def test_a_missing_library_is_a_failure_with_the_command_that_installs_it(make_context) -> None:
    asked = job(lora=Lora(quantization="nf4"), training=Training(optimizer="paged-adamw-8bit"))
    found = found_in(make_context, asked, {**TRAINER, "peft": "0.18.0"})
    assert found.status == "failure"
    assert "bitsandbytes is missing (quantization = nf4, optimizer = paged-adamw-8bit)" in found.found
    assert found.advice == "/opt/env/bin/python -m pip install bitsandbytes"


def test_a_kernel_from_the_hub_replaces_flash_attention(make_context) -> None:
    asked = job(model=ModelSpec(attention="flash_attention_2"))
    assert found_in(make_context, asked, TRAINER).status == "failure"
    assert found_in(make_context, asked, {**TRAINER, "kernels": "0.18.2"}).status == "pass"


def test_an_assumed_python_gives_only_a_warning(make_context) -> None:
    found = found_in(make_context, job(), {"torch": "2.13.0"}, sure=False)
    assert (found.status, found.unknown, "--python" in (found.advice or "")) == ("warning", True, True)


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"accelerate": "0.34.0"}, "transformers 5.23.0 takes accelerate >=1.1.0, not 0.34.0"),
        ({"bitsandbytes": "0.43.2"}, "transformers 5.23.0 takes bitsandbytes >=0.46.1, not 0.43.2"),
    ],
)
def test_incompatible_versions_are_reported(make_context, versions: dict[str, str], words: str) -> None:
    asked = job(training=Training(optimizer="adamw-8bit"))
    found = found_in(make_context, asked, {**TRAINER, "bitsandbytes": "0.48.0", **versions})
    assert (found.status, words in found.found) == ("failure", True)
    older = {**TRAINER, "transformers": "4.46.0", "bitsandbytes": "0.43.2"}
    assert found_in(make_context, asked, older).status == "pass"


def test_versions_that_differ_from_the_job_are_a_warning(make_context) -> None:
    found = found_in(make_context, job(software=Software(torch="2.4")), TRAINER)
    assert (found.status, "the job is for torch 2.4, and 2.13.0+cu128 is installed" in found.found) == ("warning", True)
    assert found_in(make_context, job(software=Software(torch="2.13")), TRAINER).status == "pass"
