import pytest

from vramtop.estimator.job.job import Job, Lora, ModelSpec, Parallel, Training
from vramtop.tui.job.form.fields import job_fields
from vramtop.tui.job.form.job_form import BASIC, field_groups
from vramtop.tui.job.form.sharding import GPUS, SHARDING, SHARDING_KEYS
from vramtop.tui.job.form.state import FormState


def state_of(job: Job, usual_gpus: int = 1) -> FormState:
    state = FormState(job, origins=None, missing=())
    state.usual_gpus = usual_gpus
    return state


def parallel(state: FormState) -> Parallel:
    return state.job.parallel


def test_a_kind_of_sharding_sets_strategy_and_ranks():
    state = state_of(Job(), usual_gpus=8)
    assert (state[SHARDING].value, state[GPUS].value) == ("none", 1)
    state.enter(SHARDING, "FSDP")
    assert parallel(state) == Parallel(strategy="fsdp2", data_shard=8)
    assert state[GPUS].text == "8"
    state.enter(SHARDING, "DDP")
    assert parallel(state) == Parallel(strategy="ddp", data_replicate=8)
    state.enter(GPUS, "4")
    assert parallel(state) == Parallel(strategy="ddp", data_replicate=4)
    assert state.edited == set(SHARDING_KEYS)
    state.enter(SHARDING, "none")
    assert parallel(state) == Parallel()


def test_several_gpus_without_sharding_hold_copies():
    state = state_of(Job())
    state.enter(GPUS, "2")
    assert parallel(state) == Parallel(strategy="ddp", data_replicate=2)
    assert state[SHARDING].value == "DDP"


def test_the_keys_of_the_job_file_show_in_the_choice_too():
    state = state_of(Job(parallel=Parallel(strategy="zero3", data_shard=4, data_replicate=2)))
    assert (state[SHARDING].value, state[GPUS].value) == ("ZeRO-3", 8)
    state.enter("parallel.data_replicate", "1")
    assert state[GPUS].text == "4"


def test_a_wrong_number_of_gpus_is_a_problem_until_it_is_corrected():
    state = state_of(Job())
    state.enter(GPUS, "x")
    assert state.job is None
    assert "GPUs must be a whole number" in (state.problem or "")
    state.enter(GPUS, "1")
    assert state.job == Job()


def test_every_field_is_either_basic_or_in_one_group():
    fields = job_fields()
    grouped = [key for group in field_groups(fields) for key in group.keys]
    assert len(grouped) == len(set(grouped))
    assert {field.key for field in fields} <= {*grouped, *BASIC}
    assert not set(grouped) & set(BASIC)


@pytest.mark.parametrize(
    ("job", "headings"),
    [
        (Job(), []),
        (
            Job(training=Training(optimizer="sgd", compile=True, gradient_accumulation=4)),
            ["batch and loss · 1 changed", "optimizer and memory · 2 changed"],
        ),
        (Job(lora=Lora(rank=8)), ["adapters · 1 changed"]),
        (Job(parallel=Parallel(strategy="fsdp2", data_shard=8, tensor=2)), ["parallelism · 1 changed"]),
    ],
)
def test_headings_say_how_many_values_differ_from_their_defaults(job, headings):
    state = state_of(job)
    found = [group.heading(state.values) for group in field_groups(state.fields)]
    assert [heading for heading in found if "changed" in heading] == headings


def test_undo_and_suggestions_fill_the_choice_of_sharding():
    state = state_of(Job(model=ModelSpec(id="gpt2")))
    state.fill(Job(model=ModelSpec(id="gpt2"), parallel=Parallel(strategy="zero2", data_shard=2)))
    assert (state[SHARDING].value, state[GPUS].text) == ("ZeRO-2", "2")
