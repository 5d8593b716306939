import datetime

from vramtop.estimator.common import GIB
from vramtop.monitor.fleet.schedulers import instance_types, table_date


def test_each_row_has_a_source_and_plausible_figures() -> None:
    types = instance_types()
    assert len({(each.source.cloud, each.name) for each in types}) == len(types) > 80
    for each in types:
        assert each.source.address.startswith("https://")
        assert datetime.date.fromisoformat(each.source.date or table_date()) <= datetime.date.fromisoformat(
            table_date()
        )
        assert each.gpus in (1, 2, 4, 8, 16)
        assert each.ram_bytes is None or each.gpus * GIB <= each.ram_bytes <= 4096 * GIB


def test_what_is_said_of_some_instance_types() -> None:
    types = {each.name: each for each in instance_types()}
    p5 = types["p5.48xlarge"]
    assert (p5.source.cloud, p5.gpu.label, p5.gpus, p5.ram_bytes) == ("AWS", "H100 80GB", 8, 2048 * GIB)
    assert (p5.skypilot, p5.dstack) == ("H100", "H100")
    azure = types["Standard_NC40ads_H100_v5"]
    assert (azure.gpu.label, azure.gpus, azure.ram_bytes, azure.source.date) == (
        "H100 NVL",
        1,
        320 * 10**9,
        "2024-07-31",
    )
    assert types["NVIDIA HGX H100"].ram_bytes is None  # the page does not say
