"""The GPU of a process comes from NVML, or else from its environment as CUDA interprets it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import make_gpu, make_mig_gpu, make_process

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.readers.source.evidence import DeviceChoice
from vramtop.monitor.attach.chosen_devices import ChosenDevices, chosen_devices
from vramtop.monitor.attach.gpu_assignment import GpuAssignment, GpuEnvironment, assign_gpu, has_own_gpu_numbering
from vramtop.monitor.snapshot.snapshot import GpuReading

UUIDS = ("GPU-8f3a0000-11", "GPU-8f3b0000-22", "GPU-17c90000-33", "GPU-e0520000-44")
PID = 4711


@pytest.fixture
def gpus() -> list[GpuReading]:
    """Four equal GPUs, none of which lists the process."""
    return [make_gpu(index, uuid=uuid) for index, uuid in enumerate(UUIDS)]


def assigned(
    gpus: Sequence[GpuReading] | None,
    local_rank: int | None = None,
    *,
    visible: str | None = None,
    order: str | None = None,
    container: str | None = None,
    **more: Any,
) -> GpuAssignment:
    names = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order, "NVIDIA_VISIBLE_DEVICES": container}
    environ = {name: value for name, value in names.items() if value is not None}
    choice = GpuEnvironment.from_environ(environ, local_rank=local_rank, **more)
    return assign_gpu(choice, gpus, pid=PID, start_time=1_000.0)


@pytest.mark.parametrize(
    ("visible", "local_rank", "gpu"),
    [
        ("2", None, 2),
        ("2,3", 1, 3),
        (" 3 , 1 ", 0, 3),
        ("3", 2, 3),  # a launcher that shows each rank its own GPU only
        (None, 2, 2),
        ("GPU-17c90000-33,GPU-e0520000-44", 1, 3),
        ("GPU-8f3a,GPU-8f3b", 1, 1),
        ("gpu", 0, None),
        ("GPU-8f3", 0, None),  # ambiguous: two UUIDs have this prefix
        ("GPU-17,GPU-99,GPU-e0", 1, 2),  # there is no GPU-99: only the first is visible
        ("0,-1,1", 1, 0),
        ("-1", 0, None),
        ("", 0, None),
        ("0,9,1", 1, 0),  # there is no GPU 9: CUDA ignores the rest
        ("1,GPU-e052", 1, 1),  # indices and UUIDs cannot be mixed
        ("1,1", 0, None),
        ("1gpu2", 0, 1),
        ("9" * 5000, 0, None),
        ("²", 0, None),
        ("2,3", 5, None),
        ("MIG-99999999", 0, None),
    ],
)
def test_cuda_visible_devices_is_parsed_like_cuda_parses_it(gpus, visible, local_rank, gpu) -> None:
    assert assigned(gpus, local_rank, visible=visible).gpu == gpu


def test_assignment_on_equal_gpus_is_likely_and_names_its_evidence(gpus: list[GpuReading]) -> None:
    found = assigned(gpus, 1, visible="2,3")
    assert (found.certainty, found.origin, found.note) == ("likely", "CUDA_VISIBLE_DEVICES, LOCAL_RANK", None)
    hidden = assigned(gpus, visible="")
    assert (hidden.gpu, hidden.certainty) == (None, "likely")
    assert hidden.note is not None
    assert "names no GPU" in hidden.note


def test_index_on_unequal_gpus_is_unsure_unless_the_device_order_is_set(gpus: list[GpuReading]) -> None:
    unequal = [*gpus[:3], make_gpu(3, uuid=UUIDS[3], name="NVIDIA T4")]
    found = assigned(unequal, visible="3")
    assert (found.gpu, found.certainty) == (3, "unsure")
    assert "CUDA_DEVICE_ORDER" in (found.note or "")
    assert assigned(unequal, visible="3", order="PCI_BUS_ID").certainty == "likely"
    assert assigned(unequal, visible="GPU-e052").certainty == "likely"
    assert assigned(gpus, visible="3", order="FASTEST_FIRST").certainty == "likely"


def test_process_without_a_rank_that_sees_several_gpus_is_assigned_the_first_as_unsure(gpus: list[GpuReading]) -> None:
    for found, gpu in ((assigned(gpus, visible="2,3"), 2), (assigned(gpus), 0)):
        assert (found.gpu, found.certainty) == (gpu, "unsure")
    assert assigned(gpus[:1]).certainty == "likely"


@pytest.mark.parametrize(
    ("container", "visible", "local_rank", "gpu"),
    [
        ("2,3", None, 1, 3),
        ("3,2", "0", 0, 2),  # in the container GPUs are numbered in NVML's order
        ("GPU-e0520000-44,GPU-8f3a0000-11", "1", 0, 3),
        ("all", "2", 0, 2),
        ("2,3", "2", 0, None),
        ("2", "GPU-17c9", 0, 2),
        ("1:0", None, 0, 1),
    ],
)
def test_gpus_in_a_container_have_their_own_numbering(gpus, container, visible, local_rank, gpu) -> None:
    assert assigned(gpus, local_rank, container=container, visible=visible, own_numbering=True).gpu == gpu


def test_containers_gpu_list_is_ignored_in_the_same_container(gpus: list[GpuReading]) -> None:
    assert assigned(gpus, container="2,3", visible="1").gpu == 1


def test_container_with_an_unknown_gpu_list_allows_only_uuids(gpus: list[GpuReading]) -> None:
    for container in (None, "void", "77"):
        found = assigned(gpus, visible="1", container=container, own_numbering=True)
        assert (found.gpu, found.certainty) == (None, "unsure")
        assert "container" in (found.note or "")
        assert assigned(gpus, visible="GPU-e052", container=container, own_numbering=True).gpu == 3


def test_without_nvml_an_index_is_kept_and_a_uuid_is_not_resolved() -> None:
    assert assigned(None, 1, visible="4,6").gpu == 6
    assert assigned(None, 3).gpu == 3
    named = assigned(None, 0, visible="GPU-8f3a")
    assert (named.gpu, named.certainty) == (None, "unsure")


def test_container_with_all_gpus_has_the_hosts_numbering(tmp_path: Path) -> None:
    here, some, every = (tmp_path / name for name in ("here", "some", "every"))
    for root, names in ((here, "01"), (some, "1"), (every, "01")):
        (root / "dev").mkdir(parents=True)
        for name in names:
            (root / "dev" / f"nvidia{name}").touch()
        (root / "dev" / "nvidia-uvm").touch()
    assert not has_own_gpu_numbering(None, here=here)
    assert not has_own_gpu_numbering(every, here=here)
    assert has_own_gpu_numbering(some, here=here)
    assert has_own_gpu_numbering(tmp_path / "hidden", here=here)


def test_mig_device_is_assigned_to_its_gpu(gpus: list[GpuReading]) -> None:
    gpus[2] = make_mig_gpu(2, uuid=UUIDS[2])
    assert assigned(gpus, visible="MIG-2-9-0").gpu == 2
    assert assigned(gpus, visible=f"MIG-{UUIDS[3]}/9/0").gpu == 3
    unknown = assigned(gpus, visible="MIG-bb")
    assert (unknown.gpu, unknown.certainty) == (None, "unsure")


def test_gpu_listed_by_nvml_takes_precedence_over_the_environment(gpus: list[GpuReading]) -> None:
    gpus[3] = make_gpu(3, [make_process(PID, 20)], uuid=UUIDS[3])
    found = assigned(gpus, 0, visible="1")
    assert (found.gpu, found.origin, found.certainty) == (3, "NVML", "certain")
    gpus[0] = make_gpu(0, [make_process(PID, 0.5)], uuid=UUIDS[0])
    found = assigned(gpus, 0, visible="1")
    assert (found.gpu, found.certainty) == (3, "likely")
    reused = assign_gpu(GpuEnvironment(cuda_visible_devices="1"), gpus, pid=PID, start_time=5_000.0)
    assert reused.gpu == 1


def test_with_unknown_sizes_the_environment_decides() -> None:
    gpus = [make_gpu(index, [make_process(PID, None)]) for index in range(2)]
    assert assigned(gpus, 1, visible="0,1").gpu == 1
    found = assigned(gpus, 0, visible="0,1")
    assert (found.gpu, found.certainty) == (0, "unsure")


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
