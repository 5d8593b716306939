"""The form in a real app: folded groups, the search for a model, the choice of sharding."""

from typing import Any

from screen_host import ScreenHost, screen_text
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Input
from waiting import until_shown

from vramtop.estimator.job.job import Job, ModelSpec, Parallel, Training
from vramtop.tui.job.form.field_row import FieldRow
from vramtop.tui.job.form.job_form import GroupHeading, JobForm
from vramtop.tui.job.form.model_input import ModelInput
from vramtop.tui.widgets.choice import Choice


class FormScreen(Screen[None]):
    def __init__(self, job: Job, **options: Any) -> None:
        super().__init__()
        self._job, self._options = job, options

    def compose(self) -> ComposeResult:
        yield JobForm(self._job, **self._options)

    @property
    def form(self) -> JobForm:
        return self.query_one(JobForm)


async def test_folded_fields_are_made_when_their_heading_is_opened():
    screen = FormScreen(Job(training=Training(compile=True)))
    async with ScreenHost(screen).run_test(size=(60, 30)) as pilot:
        await until_shown(pilot, lambda: "▸ optimizer and memory · 1 changed" in screen_text(pilot.app))
        assert len(screen.query(FieldRow)) == 8
        screen.query_one("#group-optimizer-and-memory").focus()
        await pilot.press("enter")
        await until_shown(pilot, lambda: bool(screen.query("#row-training-compile Choice")))
        assert "▾ optimizer and memory" in screen_text(pilot.app)
        screen.query_one("#row-training-compile Choice", Choice).focus()
        await pilot.press("right")
        await until_shown(pilot, lambda: screen.form.job == Job())
        await until_shown(pilot, lambda: "optimizer and memory · 1 changed" not in screen_text(pilot.app))
        screen.query_one("#group-optimizer-and-memory").focus()
        await pilot.press("left")
        await until_shown(pilot, lambda: not screen.query_one("#row-training-compile").display)


async def test_typing_lists_models_and_enter_takes_the_highlighted_one():
    screen = FormScreen(Job())
    async with ScreenHost(screen).run_test(size=(60, 30)) as pilot:
        screen.query_one(ModelInput).focus()
        await pilot.press(*"qwen2.5 7b")
        await until_shown(pilot, lambda: screen.form.model_hint)
        await until_shown(pilot, lambda: "Qwen2.5-7B" in screen_text(pilot.app))
        await pilot.press("enter")
        await until_shown(pilot, lambda: screen.form.job == Job(model=ModelSpec(id="Qwen2.5-7B")))
        assert not screen.form.model_hint
        await pilot.press("enter")
        await until_shown(pilot, lambda: screen.query_one("#row-lora Choice").has_focus)


async def test_escape_closes_the_list_and_keeps_what_was_typed():
    screen = FormScreen(Job())
    async with ScreenHost(screen).run_test(size=(60, 30)) as pilot:
        box = screen.query_one(ModelInput)
        box.focus()
        await pilot.press(*"llam")
        await until_shown(pilot, lambda: screen.form.model_hint)
        await pilot.press("escape")
        await until_shown(pilot, lambda: not screen.form.model_hint)
        assert box.value == "llam"


async def test_the_choice_of_sharding_and_the_number_of_gpus_follow_each_other():
    screen = FormScreen(Job())
    async with ScreenHost(screen).run_test(size=(60, 30)) as pilot:
        screen.form.state.usual_gpus = 16
        screen.query_one("#row-sharding Choice", Choice).value = "FSDP"
        await until_shown(pilot, lambda: screen.query_one("#row-gpus Input", Input).value == "16")
        await until_shown(pilot, lambda: screen.form.job == Job(parallel=Parallel(strategy="fsdp2", data_shard=16)))
        screen.query_one("#group-parallelism", GroupHeading).action_set(True)
        await until_shown(pilot, lambda: bool(screen.query("#row-parallel-data_shard Input")))
        assert screen.query_one("#row-parallel-data_shard Input", Input).value == "16"


async def test_a_class_that_a_filled_in_job_names_is_among_the_choices():
    screen = FormScreen(Job())
    async with ScreenHost(screen).run_test(size=(60, 40)) as pilot:
        screen.query_one("#group-optimizer-and-memory", GroupHeading).action_set(True)
        await until_shown(pilot, lambda: bool(screen.query("#row-training-optimizer Choice")))
        choice = screen.query_one("#row-training-optimizer Choice", Choice)
        before = choice.value
        screen.form.fill(Job(training=Training(optimizer="my_package:Lion")))
        await until_shown(pilot, lambda: choice.value == "my_package:Lion")
        choice.focus()
        await pilot.press("right")
        await until_shown(pilot, lambda: choice.value == choice.choices[0])
        await pilot.press("left")
        await until_shown(pilot, lambda: choice.value == "my_package:Lion")
        assert screen.form.job == Job(training=Training(optimizer="my_package:Lion"))
        assert before in choice.choices


async def test_a_heading_does_not_call_a_typed_value_a_default():
    screen = FormScreen(Job(model=ModelSpec(id="gpt2")), origins={"model.id": "train.py:3"})
    async with ScreenHost(screen).run_test(size=(60, 30)) as pilot:
        await until_shown(pilot, lambda: "not found: defaults used" in screen_text(pilot.app))
        assert "or what you typed" not in screen_text(pilot.app)
        screen.query_one("#row-training-sequence_length Input", Input).focus()
        await pilot.press("end", "ctrl+u", *"512")
        await until_shown(pilot, lambda: "not found: defaults used, or what you typed" in screen_text(pilot.app))
