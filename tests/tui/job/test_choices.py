"""A job that is chosen on the screen is the job of the flags, and of the suggestion that says the same."""

import argparse
import random

import pytest

from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.job.settings import ModelSpec
from vramtop.estimator.job.settled import quantized_adapters
from vramtop.tui.job.flags.job_flags import add_job_arguments
from vramtop.tui.job.flags.words import normal_words
from vramtop.tui.job.form.fields import MODEL, TUNING
from vramtop.tui.job.form.sharding import GPUS, SHARDING
from vramtop.tui.job.form.state import FormState
from vramtop.tui.job.load_job import load_from_options

MODELS = ("llama-3.1-8b", "gpt2", "qwen2.5-7b", "pythia-1b")
CHOICES = {
    TUNING: {"full": [], "LoRA": ["--lora"], "QLoRA": ["--qlora"]},
    "training.sequence_length": {"8k": ["--seq", "8k"], "1,024": ["--seq-len", "1024"], "512": ["--ctx", "512"]},
    "training.micro_batch": {"4": ["-b", "4"], "1": ["--mbs", "1"]},
    "training.gradient_accumulation": {"8": ["--grad-accum", "8"]},
    "training.activation_checkpointing": {"full": ["--gc"], "none": ["--gc", "false"], "selective": ["--gc=selective"]},
    "training.optimizer": {"adamw-8bit": ["--adam8bit"], "lion": ["--optim", "lion"]},
    "training.precision": {"bf16": ["--pure-bf16"], "bf16-mixed": ["--precision", "bf16-mixed"]},
    "training.loss": {"fused-linear": ["--liger"]},
    "model.attention": {"eager": ["--eager"], "flash_attention_2": ["--flash-attn"]},
    "lora.rank": {"64": ["--lora-r", "64"]},
    "lora.targets": {"q_proj, k_proj": ["--lora-targets", "q_proj,k_proj"], "all-linear": ["--lora-target", "all"]},
    SHARDING: {"FSDP": ["--fsdp"], "DDP": ["--ddp"], "ZeRO-3": ["--zero", "3"], "ZeRO-2": ["--zero", "2"]},
}


def of_flags(words: list[str], gpus: int | None = None) -> Job:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_job_arguments(parser)
    options = parser.parse_args(normal_words(words))
    options.gpus = gpus
    return load_from_options(options, None).job


def of_form(choices: list[tuple[str, str]]) -> Job:
    state = FormState(Job(), origins=None, missing=())
    for key, word in choices:
        state.enter(key, word)
    assert state.job is not None, state.problem
    return state.job


@pytest.mark.parametrize("seed", range(15))
def test_choices_make_the_job_of_the_same_flags(seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311
    for _ in range(20):
        choose(dice)


def choose(dice: random.Random) -> None:
    """Type choices as a form's and as flags; the jobs are the same."""
    model, gpus = dice.choice(MODELS), dice.choice((2, 4, 8))
    tuning = dice.choice(("full", "LoRA", "QLoRA"))
    keys = [key for key in CHOICES if key != TUNING and dice.random() < 0.4]
    if tuning == "full":
        keys = [key for key in keys if not key.startswith("lora.")]
    chosen = [(TUNING, tuning), *((key, dice.choice([*CHOICES[key]])) for key in keys)]
    flags = [word for key, value in chosen for word in CHOICES[key][value]]
    typed = [(MODEL, model), *chosen]
    if tuning == "full" or dice.random() < 0.5:  # whatever comes first; adapters have fields once they are chosen
        dice.shuffle(typed)
    spread = SHARDING in keys
    typed += [(GPUS, str(gpus))] if spread else []
    assert of_form(typed) == of_flags([model, *flags], gpus if spread else None)


@pytest.mark.parametrize("model", MODELS)
def test_the_suggestion_of_qlora_is_that_of_the_flag_and_stays_on_the_screen(model: str) -> None:
    plain = of_flags([model, "--seq", "512"])
    suggested = with_changes(plain, quantized_adapters(plain))
    assert suggested == of_flags([model, "--seq", "512", "--qlora"])
    state = FormState(plain, origins=None, missing=())
    state.fill(suggested)
    assert state.job == suggested
    state.enter("training.micro_batch", "2")
    assert state.job == with_changes(suggested, {"training.micro_batch": 2})


def test_what_a_choice_implied_goes_with_it() -> None:
    assert of_form([(MODEL, "gpt2"), (TUNING, "QLoRA"), (TUNING, "full")]) == of_flags(["gpt2"])
    assert of_form([(TUNING, "QLoRA"), (MODEL, "gpt2"), (TUNING, "LoRA")]) == of_flags(["gpt2", "--lora"])
    assert Job(model=ModelSpec(id="gpt2")) != of_flags(["gpt2"])  # whose longest sequence is shorter than the default
