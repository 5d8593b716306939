from collections import Counter

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.sizes import GIB, MIB
from vramtop.estimator.job.gpu_catalogue import catalogue, find_gpu, match_nvml_name


@pytest.mark.parametrize(
    ("name", "expected", "total_mib"),
    [
        ("h100-80gb", "h100-80gb", 81559),
        ("H100", "h100-80gb", 81559),
        ("h100-nvl", "h100-94gb", 95830),
        ("A100", "a100-40gb", 40960),
        ("a100_80gb", "a100-80gb", 81920),
        ("4090", "rtx-4090", 24564),
        ("RTX 4090", "rtx-4090", 24564),
        ("NVIDIA GeForce RTX 5090", "rtx-5090", 32607),
        ("NVIDIA RTX PRO 4500 Blackwell", "rtx-pro-4500", 32623),
        ("NVIDIA RTX PRO 5000 72GB Blackwell", "rtx-pro-5000-72gb", 73404),
        ("RTX PRO 5000 72G", "rtx-pro-5000-72gb", 73404),
        ("Tesla T4", "t4", 15360),
        ("colab T4", "t4", 15360),
        ("a100-80", "a100-80gb", 81920),
        ("H100 80G", "h100-80gb", 81559),
        ("b200", "b200", 183359),
        ("h200", "h200", 143771),
    ],
)
def test_names_may_be_written_in_several_ways(name: str, expected: str, total_mib: int) -> None:
    gpu = find_gpu(name)

    assert gpu.name == expected
    assert gpu.total_bytes == total_mib * MIB


def test_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no GPU 'h100-81gb'.*h100-80gb"):
        find_gpu("h100-81gb")
    with pytest.raises(InputError, match="--gpu-memory"):
        find_gpu("voodoo")


def test_every_name_finds_its_own_gpu() -> None:
    for gpu in catalogue():
        for name in (gpu.name, gpu.label, *gpu.aliases, *gpu.nvml_names):
            assert find_gpu(name) is gpu, name


def test_names_are_unique() -> None:
    names = Counter(name for gpu in catalogue() for name in {gpu.name, *gpu.aliases, *gpu.nvml_names})

    assert [name for name, times in names.items() if times > 1] == []


def test_figures_are_sane() -> None:
    for gpu in catalogue():
        assert 7 * GIB < gpu.total_bytes < 300 * GIB, gpu.name
        assert gpu.reserved_bytes is None or 0 < gpu.reserved_bytes < gpu.total_bytes // 20, gpu.name
        assert (6, 0) <= gpu.compute_capability <= (12, 1), gpu.name
        assert gpu.nvml_names or gpu.name == "rtx-4060-ti-16gb"  # NVML has one name for both sizes


def test_live_gpu_is_matched_by_its_nvml_name() -> None:
    for gpu in catalogue():
        for name in gpu.nvml_names:
            assert match_nvml_name(name, gpu.total_bytes) is gpu
            assert match_nvml_name(name) is gpu


def test_another_drivers_total_is_the_same_gpu() -> None:
    matched = match_nvml_name("Tesla T4", 15109 * MIB)

    assert matched.name == "t4"


def test_slices_and_unknown_gpus_are_not_matched() -> None:
    assert match_nvml_name("NVIDIA H100 80GB HBM3", 20 * GIB) is None
    assert match_nvml_name("NVIDIA GeForce RTX 4090 Laptop GPU", 16376 * MIB) is None
