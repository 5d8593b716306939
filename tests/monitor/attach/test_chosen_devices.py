"""The GPUs of this machine that a job's choice names."""

from typing import Any

import pytest
from builders import make_gpu

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.readers.source.evidence import DeviceChoice
from vramtop.monitor.attach.chosen_devices import ChosenDevices, chosen_devices


def chosen(environ: dict[str, str] | None = None, **choice: Any) -> ChosenDevices:
    made = DeviceChoice(origin="--flag of it", text="x", **choice) if choice else None
    return chosen_devices(made, environ or {}, [make_gpu(index) for index in range(4)])


@pytest.mark.parametrize(
    ("choice", "selection"),
    [
        ({"visible": "2,0"}, (2, 0)),
        ({"visible": "GPU-00000003"}, (3,)),
        ({"excluded": "0,2"}, (1, 3)),
        ({"container": "3,1"}, (1, 3)),
        ({"container": "1,3", "visible": "1"}, (3,)),
        ({"visible": "3,2,1", "index": 1}, (2,)),
    ],
)
def test_a_choice_wins_over_the_environment(choice: dict[str, Any], selection: tuple[int, ...]) -> None:
    found = chosen({"CUDA_VISIBLE_DEVICES": "0"}, **choice)
    assert (found.selection, found.by_flag, found.is_unknown) == (selection, "--flag of it", False)
    assert found.notes == (f"Only GPU {', '.join(map(str, selection))}: --flag of it is 'x'.",)
    assert found.environ({"A": "b"}) == {"A": "b", "CUDA_VISIBLE_DEVICES": ",".join(map(str, selection))}


def test_without_a_choice_the_environment_counts() -> None:
    assert chosen() == ChosenDevices()
    found = chosen({"CUDA_VISIBLE_DEVICES": "1"})
    assert (found.selection, found.by_flag) == ((1,), None)


def test_a_position_counts_among_the_gpus_that_are_visible() -> None:
    assert chosen(index=1).selection == (1,)
    assert chosen({"CUDA_VISIBLE_DEVICES": "3,2"}, index=1).selection == (2,)
    with pytest.raises(InputError, match="names no GPU here"):
        chosen({"CUDA_VISIBLE_DEVICES": "3"}, index=1)


@pytest.mark.parametrize("choice", [{"visible": "9"}, {"container": "9"}, {"excluded": "0,1,2,3"}])
def test_a_choice_of_no_gpu_is_an_error(choice: dict[str, str]) -> None:
    with pytest.raises(InputError, match="--flag of it is 'x', which names no GPU here; correct it, or give --gpu"):
        chosen(**choice)
