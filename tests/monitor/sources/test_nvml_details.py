"""Details of a GPU: read only while they are asked for, each unknown one with its reason."""

import pynvml
import pytest
from fake_driver import FakeGpu
from waiting import until

from vramtop.monitor.snapshot.demand import Demand
from vramtop.monitor.snapshot.gpu_details import EccErrors, NvLinks, PcieLink, RemappedRows
from vramtop.monitor.sources.nvml.details import COMPACT_INTERVAL_SECONDS
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource
from vramtop.monitor.sources.nvml.pci_device import pci_place


@pytest.fixture
def source(driver, source):
    """A source of two GPUs, opened."""
    driver.gpus = [FakeGpu(uuid="GPU-0"), FakeGpu(uuid="GPU-1")]
    source.open()
    return source


def test_without_a_screen_that_shows_them_details_cost_no_call(driver, source, demand):
    source.read()
    driver.calls.clear()
    source.read()
    default = dict(driver.calls)
    demand.value = Demand(gpus={"GPU-1": "full"})
    source.read()
    demand.value = Demand()
    driver.calls.clear()
    first, second = source.read().gpus
    assert driver.calls == default
    assert first.details is second.details is None


def test_all_details_of_the_gpu_that_is_shown(source, demand, clock):
    demand.value = Demand(gpus={"GPU-1": "full"})
    first, second = source.read().gpus
    clock.advance(2)
    details = source.read().gpus[1].details
    assert first.details is None
    assert second.memory_utilisation_percent == 40
    assert (details.clock_reasons, details.fan_percents, details.performance_state) == (0x4, (30, 42), 0)
    assert (details.sm_mhz, details.sm_max_mhz, details.memory_mhz, details.memory_max_mhz) == (1200, 1410, 1215, 1593)
    assert (details.slowdown_c, details.shutdown_c, details.memory_temperature_c) == (87, 90, 61)
    assert (details.encoder_percent, details.decoder_percent) == (5, 6)
    assert (details.power_default_w, details.power_max_w, details.persistence) == (400.0, 500.0, True)
    assert details.ecc == EccErrors(
        recent_corrected=3, recent_uncorrected=0, lifetime_corrected=10, lifetime_uncorrected=1
    )
    assert details.remapped_rows == RemappedRows(after_corrected=1, after_uncorrected=2, pending=True, failed=False)
    assert details.pcie == PcieLink(
        generation=1, max_generation=4, width=8, max_width=16,
        sent_per_second=200_000_000, received_per_second=400_000_000, replays=7,
    )  # fmt: skip
    assert details.nvlink == NvLinks(
        count=4, active=3, version=3, link_bytes_per_second=25_000_000_000, peers=("switch",),
        sent_per_second=1024 * 1000, received_per_second=1024 * 500,
    )  # fmt: skip
    assert (details.vbios, details.compute_capability, details.bar1_used_bytes) == ("92.00.45.00.00", "8.0", 2**21)
    assert details.pci_address == "000a:02:00.0"
    assert details.faults == ()


def test_for_a_word_only_fans_and_reasons_are_read_and_rarely(driver, source, demand, clock):
    source.read()
    driver.calls.clear()
    source.read()
    default = driver.calls.total()
    demand.value = Demand(gpus={"GPU-0": "compact", "GPU-1": "compact"})
    driver.calls.clear()
    details = source.read().gpus[0].details
    assert (details.level, details.clock_reasons, details.fan_percents, details.sm_mhz) == (
        "compact",
        4,
        (30, 42),
        None,
    )
    assert driver.calls.total() == default + 2 * 4  # reasons, number of fans, two fans
    driver.calls.clear()
    assert source.read().gpus[0].details == details
    assert driver.calls.total() == default
    clock.advance(COMPACT_INTERVAL_SECONDS)
    source.read()
    assert driver.calls["nvmlDeviceGetCurrentClocksEventReasons"] == 2


def test_an_older_driver_knows_the_reasons_by_another_name(driver, source, demand):
    driver.missing = {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetNumFans", "nvmlDeviceGetFieldValues"}
    demand.value = Demand(gpus={"GPU-0": "full"})
    details = source.read().gpus[0].details
    assert (details.clock_reasons, details.fan_percents, details.nvlink) == (4, (30,), None)
    assert details.reason("nvlink") == "the installed driver is too old to report NVLinks"


def test_each_refused_figure_has_its_reason_and_the_others_are_there(driver, source, demand):
    for call in ("FanSpeed_v2", "NumFans", "FanSpeed", "ClockInfo", "EccMode", "PcieThroughput", "BAR1MemoryInfo"):
        driver.fail(f"nvmlDeviceGet{call}", pynvml.NVML_ERROR_NOT_SUPPORTED)
    driver.fail("nvmlDeviceGetTemperatureThreshold", pynvml.NVML_ERROR_NO_PERMISSION)
    demand.value = Demand(gpus={"GPU-0": "full"})
    details = source.read().gpus[0].details
    assert (details.fan_percents, details.sm_mhz, details.ecc, details.bar1_total_bytes) == (None, None, None, None)
    assert details.reason("fan_percents") == "this GPU does not report its fans"
    assert details.reason("ecc_enabled") == "this GPU does not report whether ECC is on"
    assert details.reason("slowdown_c") == (
        "the driver does not let this user read the temperature at which it slows down"
    )
    assert details.slowdown_margin_c == 24
    assert details.pcie.sent_per_second is None
    assert details.pcie.generation == 1
    assert details.reason("pcie.traffic") == "this GPU does not report its PCIe traffic"


def test_a_call_for_details_that_hangs_leaves_old_figures_with_their_age_and_the_other_gpus(driver, clock, demand):
    driver.gpus = [FakeGpu(uuid="GPU-0"), FakeGpu(uuid="GPU-1", utilisation=50)]
    source = NvmlSource(clock=clock, now=clock, timeout=0.05, first_timeout=60, demand=demand)
    source.open()
    demand.value = Demand(gpus={"GPU-0": "full"})
    before = source.read().gpus[0]
    driver.hang("nvmlDeviceGetPcieThroughput", 0)
    until(lambda: source.read().gpus[0].is_stale)
    clock.advance(3)
    driver.gpus[1].utilisation = 77
    hanging, other = source.read().gpus
    assert hanging.details == before.details
    assert "nvmlDeviceGetPcieThroughput has not returned" in hanging.faults[0].message
    assert not other.is_stale
    assert other.utilisation_percent == 77
    driver.release()
    until(lambda: not source.read().gpus[0].is_stale)
    source.close()


def test_the_place_in_the_host(tmp_path):
    device = tmp_path / "0000:17:00.0"
    device.mkdir()
    (device / "numa_node").write_text("1\n")
    (device / "local_cpulist").write_text("32-63,96-127\n")
    assert pci_place("0000:17:00.0", tmp_path) == (1, "32-63,96-127")
    (device / "numa_node").write_text("-1\n")
    (device / "local_cpulist").write_text("\x1b[2J\n")
    assert pci_place("0000:17:00.0", tmp_path) == pci_place(None) == (None, None)
