"""The host's load is read only while it is shown, and not at every reading."""

from builders import ScriptedSource, make_gpu, make_snapshot

from vramtop.monitor.snapshot.demand import CurrentDemand, Demand
from vramtop.monitor.snapshot.snapshot import HostLoad
from vramtop.monitor.sources.host_load_source import HOST_INTERVAL_SECONDS, HostLoadSource


class Reader:
    """Counts its readings."""

    def __init__(self) -> None:
        self.reads = 0

    def read(self) -> HostLoad:
        self.reads += 1
        return HostLoad(cpu_percent=float(self.reads))


def test_the_load_is_read_while_it_is_shown(clock):
    demand, reader = CurrentDemand(), Reader()
    source = HostLoadSource(ScriptedSource([make_snapshot([make_gpu()])]), demand, reader, clock)
    source.open()
    assert source.read().host is None
    assert reader.reads == 0
    demand.value = Demand(host=True)
    assert source.read().host == HostLoad(cpu_percent=1.0)
    assert source.read().host == HostLoad(cpu_percent=1.0)
    clock.advance(HOST_INTERVAL_SECONDS)
    assert source.read().host == HostLoad(cpu_percent=2.0)
    demand.value = Demand()
    clock.advance(HOST_INTERVAL_SECONDS)
    assert source.read().host is None
    assert reader.reads == 2
