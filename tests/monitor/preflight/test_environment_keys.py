"""Keys in the environment that the job needs; their values are never shown."""

from pathlib import Path

import pytest

from vramtop.estimator.job.job import Job, ModelSpec, Run
from vramtop.estimator.model.hub import Refusal
from vramtop.monitor.preflight.checks.environment_keys import check_environment_keys

SECRET = "nvapi-0123456789"  # noqa: S105 - made up
INLINE = ModelSpec(config={"model_type": "llama"})


def test_a_job_without_required_keys_is_skipped(make_context) -> None:
    assert check_environment_keys(make_context(Job(model=INLINE))).status == "skipped"


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (Run(inference_endpoint="https://integrate.api.nvidia.com/v1"), "NSS_INFERENCE_KEY"),
        (Run(inference_endpoint="localhost:8000", inference_key="OPENAI_API_KEY"), "OPENAI_API_KEY"),
        (Run(report_to=["wandb"]), "WANDB_API_KEY"),
        (Run(report_to=["tensorboard", "comet_ml"]), "COMET_API_KEY"),
        (Run(required_environment=["MY_KEY"]), "MY_KEY"),
    ],
)
@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_key_that_is_not_set_is_a_failure(make_context, tmp_path, run, name, value) -> None:
    job, home = Job(model=INLINE, run=run), {"HOME": str(tmp_path)}
    found = check_environment_keys(make_context(job, environ=home if value is None else {**home, name: value}))
    assert found.status == "failure"
    assert f"{name} is not set" in found.found
    assert found.advice == f"set {name} where the job is started"
    there = check_environment_keys(make_context(job, environ={**home, name: SECRET}))
    assert (there.status, there.found) == ("pass", f"{name} is set")


def test_values_and_passwords_are_never_shown(make_context) -> None:
    run = Run(inference_endpoint=f"https://ana:{SECRET}@nim.example/v1", required_environment=["A", "B"])
    found = check_environment_keys(make_context(Job(model=INLINE, run=run), environ={"A": SECRET}))
    assert "nim.example" in found.found
    assert SECRET not in f"{found.found}{found.advice}"
    padded = check_environment_keys(
        make_context(Job(model=INLINE, run=Run(required_environment=["A"])), environ={"A": f"{SECRET}\n"})
    )
    assert (padded.status, SECRET in padded.found) == ("warning", False)


def test_wandb_key_may_be_elsewhere_or_unneeded(make_context, tmp_path: Path) -> None:
    job, home = Job(model=INLINE, run=Run(report_to=["wandb"])), {"HOME": str(tmp_path)}
    assert check_environment_keys(make_context(job, environ=home)).status == "failure"
    assert check_environment_keys(make_context(job, environ={**home, "WANDB_MODE": "offline"})).status == "pass"
    (tmp_path / ".netrc").write_text(f"machine api.wandb.ai login user password {SECRET}\n")
    (tmp_path / ".netrc").chmod(0o600)
    found = check_environment_keys(make_context(job, environ=home))
    assert (found.status, "api.wandb.ai in" in found.found, SECRET in found.found) == ("pass", True, False)
    own = {**home, "WANDB_BASE_URL": "https://wandb.example"}
    assert check_environment_keys(make_context(job, environ=own)).status == "failure"
    (tmp_path / ".netrc").write_text(f"nonsense {SECRET}\n")
    broken = check_environment_keys(make_context(job, environ=home))
    assert (broken.status, SECRET in broken.found) == ("failure", False)


def test_environment_keys_are_checked_without_waiting_for_the_hub(make_context) -> None:
    def hangs() -> Refusal:
        raise AssertionError("asked")

    job = Job(model=ModelSpec(id="acme/gated"), run=Run(required_environment=["A"]))
    assert check_environment_keys(make_context(job, environ={}, hub_access=hangs)).status == "failure"
