"""Another model, given in a form that came from a launch line or a file: what follows from it is shown at once."""

from pathlib import Path

import pytest
from builders import make_budget
from screen_host import ScreenHost, field_row, retype
from waiting import until_shown

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job import Job
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.tui.screens.fit.screen import FitCheckScreen
from vramtop.tui.screens.fit.verdict_view import VerdictView

OLD = "llama-3.1-8b"
SCRIPT = f"""
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments
from peft import LoraConfig, get_peft_model
config = AutoConfig.from_pretrained("{OLD}")
config.num_hidden_layers = 2
model = AutoModelForCausalLM.from_pretrained("{OLD}", config=config)
model = get_peft_model(model, LoraConfig(r=4))
args = TrainingArguments(per_device_train_batch_size=4, output_dir="x", run_name="{OLD} run")
Trainer(model=model, args=args, train_dataset=None).train()
"""


def estimate(job: Job) -> Budget:
    if job.model.id not in (OLD, "gpt2"):
        raise InputError(f"model {job.model.id!r} is not known")
    return make_budget(job, device=10)


@pytest.fixture
def screen(in_folder: Path) -> FitCheckScreen:
    (in_folder / "train.py").write_text(SCRIPT)

    return FitCheckScreen(Watchlist(estimate=estimate), estimate=estimate)


def remarks(screen: FitCheckScreen) -> str:
    return "\n".join(str(line.render()) for line in screen.query("FieldRow .remark") if line.display)


def estimated(screen: FitCheckScreen, model: str) -> bool:
    view = screen.query_one(VerdictView)
    return not view.is_invalid and view.budget is not None and view.budget.job.model.id == model


@pytest.mark.slow
async def test_a_launch_line_is_read_again_with_another_model_and_edits_stay(screen):
    async with ScreenHost(screen).run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        screen.action_open("python train.py")
        await until_shown(pilot, lambda: bool(screen.query("#heading-found")) and bool(screen.query("FieldRow Input")))
        await retype(pilot, screen, "training.sequence_length", "512")
        await retype(pilot, screen, "lora.rank", "16")
        await until_shown(pilot, lambda: estimated(screen, OLD))
        old = screen.job
        assert old.model.config is not None
        await retype(pilot, screen, "model.id", "gpt2")
        await until_shown(pilot, lambda: estimated(screen, "gpt2"))
        job = screen.job
        assert (job.lora.targets, job.lora.rank, job.training.sequence_length) == (["c_attn"], 16, 512)
        assert (job.model.config, job.name) == (None, None)
        assert field_row(screen, "lora.targets").value == ["c_attn"]
        assert "peft's default for gpt2" in remarks(screen)
        assert OLD not in remarks(screen)
        await pilot.press("f10")
        await until_shown(pilot, lambda: estimated(screen, OLD))
        assert screen.job == old
        assert "peft's default for llama" in remarks(screen)
