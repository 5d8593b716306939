"""A suspended GPU is not queried."""

import pytest
from fake_driver import FakeGpu

from vramtop.monitor.sources.nvml import pci_device
from vramtop.monitor.sources.nvml.device import MODE_INTERVAL_SECONDS
from vramtop.monitor.sources.nvml.pci_device import can_suspend, is_suspended

GIB = 2**30


@pytest.fixture
def power(driver, tmp_path, monkeypatch):
    """Return a function that writes the kernel's power files of the driver's GPU at 000a:01:00.0."""
    driver.gpus = [FakeGpu()]
    (tmp_path / "gpus" / "000a:01:00.0").mkdir(parents=True)
    folder = tmp_path / "devices" / "000a:01:00.0" / "power"
    folder.mkdir(parents=True)
    monkeypatch.setattr(pci_device, "DRIVER_FOLDER", tmp_path / "gpus")
    monkeypatch.setattr(pci_device, "PCI_FOLDER", tmp_path / "devices")

    def write(control, status):
        (folder / "control").write_text(control + "\n")
        (folder / "runtime_status").write_text(status + "\n")

    return write


def test_an_unknown_power_state_is_not_suspended(tmp_path):
    assert not is_suspended("0000:01:00.0", tmp_path)
    assert not can_suspend("0000:01:00.0", tmp_path)
    assert not is_suspended(None)


def test_a_suspended_gpu_is_not_opened_until_it_wakes(driver, source, power):
    power("auto", "suspended")
    source.open()
    (gpu,) = source.read().gpus
    assert [fault.code for fault in gpu.faults] == ["ASLEEP"]
    assert "asleep" in gpu.reason("used_bytes")
    assert (gpu.total_bytes, gpu.used_bytes, gpu.processes) == (None, None, None)
    assert not [call for call in driver.calls if call.startswith("nvmlDeviceGet") and "Count" not in call]
    power("auto", "active")
    assert source.read().gpus[0].used_bytes == 20 * GIB


def test_a_gpu_that_suspends_is_no_longer_queried(driver, source, power):
    power("auto", "active")
    source.open()
    assert source.read().gpus[0].used_bytes == 20 * GIB
    power("auto", "suspended")
    driver.calls.clear()
    (gpu,) = source.read().gpus
    assert [fault.code for fault in gpu.faults] == ["ASLEEP"]
    assert (gpu.name, gpu.uuid) == ("NVIDIA A100-SXM4-80GB", "GPU-0")
    assert not driver.calls


def test_without_the_drivers_list_a_gpu_is_known_once_it_was_opened(
    driver, source, power, clock, monkeypatch, tmp_path
):
    monkeypatch.setattr(pci_device, "DRIVER_FOLDER", tmp_path / "absent")
    power("auto", "active")
    source.open()
    assert source.read().gpus[0].faults == ()
    power("auto", "suspended")
    clock.advance(MODE_INTERVAL_SECONDS)
    assert [fault.code for fault in source.read().gpus[0].faults] == ["ASLEEP"]


def test_the_power_state_of_a_gpu_that_never_sleeps_is_not_read_each_time(source, power, clock):
    power("on", "active")
    source.open()
    source.read()
    power("auto", "suspended")  # an administrator has changed it
    assert source.read().gpus[0].faults == ()
    clock.advance(MODE_INTERVAL_SECONDS)
    assert [fault.code for fault in source.read().gpus[0].faults] == ["ASLEEP"]
