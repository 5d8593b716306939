"""Short texts about a GPU beside its memory."""

import pytest
from builders import make_gpu, make_mig_gpu

from vramtop.monitor.snapshot.gpu_details import GpuDetails
from vramtop.monitor.snapshot.mig_devices import mig_devices
from vramtop.monitor.snapshot.snapshot import GpuReading
from vramtop.tui.draw.gpu_bars import gpu_figure_parts, hardware_cell


def details(reasons: int | None = 0, fans: tuple[int, ...] | None = None) -> GpuDetails:
    return GpuDetails(level="compact", clock_reasons=reasons, fan_percents=fans)


def words(gpu: GpuReading) -> str:
    return " · ".join(part.plain.strip() for part in gpu_figure_parts(gpu))


def test_parts_are_in_order_of_importance_and_what_nobody_asked_for_is_left_out() -> None:
    assert words(make_gpu()) == "util 98 % · 412 of 700 W · 63 °C"
    full = make_gpu(memory_utilisation_percent=54, details=details(0x80 | 0x8, (30, 42)))
    assert words(full) == "! power brake · util 98 % · 412 of 700 W · 63 °C · bandwidth 54 % · fan 30-42 %"
    assert words(make_gpu(details=details(0x4, (30, 30)))).startswith("power cap · util")
    assert words(make_gpu(details=details(0x1, ()))) == words(make_gpu())


def test_an_unknown_figure_is_not_0() -> None:
    gpu = make_gpu(utilisation_percent=None, power_w=None, temperature_c=None, details=details(None))
    assert words(gpu) == "util n/a · W n/a · °C n/a"
    assert hardware_cell(gpu, 20).plain.split() == ["n/a", "n/a"]


@pytest.mark.parametrize(
    ("reasons", "shown"), [(0x4, "412/700 W   63 °C"), (0x40, "! too hot    63 °C"), (None, "412/700 W   63 °C")]
)
def test_a_row_has_power_and_temperature_or_what_slows_the_gpu_down(reasons: int | None, shown: str) -> None:
    cell = hardware_cell(make_gpu(details=details(reasons)), 20)
    assert cell.plain.strip() == shown
    assert cell.cell_length == 20


def test_power_and_temperature_of_a_mig_device_are_of_its_gpu() -> None:
    device = mig_devices(make_mig_gpu())[0]
    assert hardware_cell(device, 20).plain == " " * 20
    assert words(device) == "util n/a"
