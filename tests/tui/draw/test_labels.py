"""Names of processes."""

import pytest
from builders import make_process

from vramtop.estimator.common.records import replace
from vramtop.tui.draw.labels import process_name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("VLLM::Worker_TP3", "vLLM server"),
        ("python -m sglang.launch_server --model-path x", "SGLang server"),
        ("python3 -m ipykernel_launcher -f kernel.json", "Jupyter kernel"),
        ("/opt/bin/python3 -u /home/me/train.py --lr 1", "train.py"),
        ("python -m pkg.train", "pkg.train"),
        ("./bench --fast", "bench"),
    ],
)
def test_a_process_has_the_name_that_a_person_would_use(command: str, name: str) -> None:
    assert process_name(replace(make_process(1, 1), command=command, name="python")) == name
