"""Another model, given on the attach screen of a real process: what follows from it is shown at once."""

import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from builders import make_budget
from screen_host import field_row, opened, retype
from waiting import until_shown

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job
from vramtop.monitor.attach.read_run import read_run
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.tui.screens.attach.screen import AttachScreen

OLD = "llama-3.1-8b"
SCRIPT = f"""
import time
print("up", flush=True)
time.sleep(60)
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model
config = AutoConfig.from_pretrained("{OLD}")
config.num_hidden_layers = 2
model = AutoModelForCausalLM.from_pretrained("{OLD}", config=config)
model = get_peft_model(model, LoraConfig(r=4))
args = TrainingArguments(per_device_train_batch_size=4, output_dir="x", run_name="{OLD} run")
Trainer(model=model, args=args, train_dataset=None).train()
"""


@pytest.fixture
def training(start_script) -> subprocess.Popen[str]:
    """A real process of a training script with LoRA and a changed config."""
    return start_script(text=SCRIPT)


def estimate(job: Job, **_: object) -> Budget:
    if job.model.id not in (OLD, "gpt2"):
        raise InputError(f"model {job.model.id!r} is not known")
    return make_budget(job, device=40)


@asynccontextmanager
async def attached(
    training: subprocess.Popen[str], **options: Any
) -> AsyncIterator[tuple[Watchlist, AttachScreen, Any]]:
    """Open the screen on the process, and fill in what its script leaves open, so that the run is followed."""
    watchlist = Watchlist(estimate=estimate)
    async with opened(AttachScreen(watchlist, estimate=estimate, pid=training.pid, **options)) as (screen, pilot):
        await until_shown(pilot, lambda: bool(screen.query("FieldRow Input")))
        await retype(pilot, screen, "training.sequence_length", "512")
        await until_shown(pilot, lambda: len(watchlist.runs()) == 1)
        yield watchlist, screen, pilot


def remarks(screen: AttachScreen) -> str:
    return "\n".join(str(line.render()) for line in screen.query(".remark") if line.display)


def problem(screen: AttachScreen) -> str:
    return str(screen.query_one("#problem").render())


@pytest.mark.slow
async def test_until_the_run_is_read_again_nothing_of_the_old_model_is_shown_beside_the_new_one(training):
    free, started = threading.Event(), threading.Event()

    def attach(pid, *, given=None, **options):
        if given:
            started.set()
            free.wait(60)
        return read_run(pid, given=given, **options)

    async with attached(training, attach=attach) as (watchlist, screen, pilot):
        await retype(pilot, screen, "model.id", "gpt2")
        await until_shown(pilot, started.is_set)
        assert remarks(screen) == ""
        assert f"found for {OLD}" in str(screen.query_one("#heading-found").render())
        assert "Reading the run again with gpt2" in problem(screen)
        assert "Until then, the previous settings apply" in problem(screen)
        assert watchlist.runs()[0].job.model.id == OLD
        # A later edit wins over what is being read, and is kept.
        await retype(pilot, screen, "training.micro_batch", "7")
        assert field_row(screen, "training.micro_batch").value == 7
        free.set()
        await until_shown(pilot, lambda: watchlist.runs()[0].job.model.id == "gpt2")
        job = watchlist.runs()[0].job
        assert job.training.micro_batch == 7
        assert job.lora.targets == ["c_attn"]
