from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from vramtop.estimator.job.job_file.edit import edit_job_file
from vramtop.estimator.job.job_file.load_and_save import load_job

TEXT = """\
name = "sft"  # mine
[model]
id = "gpt2"   # small

# how it runs
[training]
micro_batch = 4        # per GPU
optimizer = "adamw"

[lora]
targets = [
    "q_proj",  # queries
    "v_proj",
]
rank = 8
"""


def test_new_keys_go_to_the_end_of_their_table_and_new_tables_to_the_end() -> None:
    after = edit_job_file(TEXT, {"training.activation_checkpointing": "full", "parallel.strategy": "fsdp2"})
    assert 'optimizer = "adamw"\nactivation_checkpointing = "full"\n\n[lora]' in after
    assert after.endswith('rank = 8\n\n[parallel]\nstrategy = "fsdp2"\n')


def test_a_list_over_several_lines_is_replaced_completely() -> None:
    after = edit_job_file(TEXT, {"lora.targets": "all-linear", "lora.rank": 16})
    assert after.endswith('[lora]\ntargets = "all-linear"\nrank = 16\n')


@pytest.mark.parametrize(
    "text",
    [
        "training = { micro_batch = 4 }  # mine\n",
        "training.micro_batch = 4  # mine\n",
        '"training"."micro_batch" = 4  # mine\n',
        "[training]  # mine\nmicro_batch = 4\n[training.x]\n",
    ],
)
def test_tables_may_be_written_in_any_way(text: str) -> None:
    after = edit_job_file(text, {"training.micro_batch": 2, "training.loss": "full"})
    assert "# mine" in after
    assert msgspec.toml.decode(after)["training"].items() >= {"micro_batch": 2, "loss": "full"}.items()


@pytest.mark.parametrize("text", ["not toml", "training = 4\n", "[[training]]\nmicro_batch = 4\n"])
def test_a_text_that_cannot_be_edited_gives_none(text: str) -> None:
    assert edit_job_file(text, {"training.micro_batch": 2}) is None


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "training.micro_batch": st.integers(1, 99),
    "training.optimizer": st.sampled_from(["adamw-8bit", "sgd"]),
    "training.activation_offload": st.booleans(),
    "lora.targets": st.one_of(st.just("all-linear"), st.lists(st.text("abc#]\"'_", min_size=1), min_size=1)),
    "lora.quantization": st.sampled_from(["nf4", "none"]),
    "parallel.data_shard": st.integers(1, 8),
}


@given(changes=st.fixed_dictionaries({}, optional=VALUES))
def test_the_edited_file_reads_as_the_changed_job(changes: dict[str, Any], tmp_path_factory: Any) -> None:
    after = edit_job_file(TEXT, changes)
    assert all(comment in after for comment in ("# mine", "# small", "# how it runs", "# per GPU"))
    path = Path(tmp_path_factory.mktemp("job")) / "job.toml"
    path.write_text(after)
    job = load_job(path)
    for dotted, value in changes.items():
        table, _, key = dotted.partition(".")
        assert getattr(getattr(job, table), key) == value
