"""MIG devices as readings of their own: memory, processes, identity."""

from builders import make_gpu, make_mig_gpu, make_process

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.snapshot.figures import Fault
from vramtop.monitor.snapshot.mig_devices import device_of, mig_devices


def test_each_device_has_the_memory_of_its_instance_and_names_the_device_it_shares_it_with():
    inside = [
        make_process(1, 0.5, gpu_instance=3, compute_instance=0),
        make_process(2, 0.25, gpu_instance=3, compute_instance=1),
        make_process(3, 0.125, gpu_instance=9),
        make_process(4, 0.1),
    ]
    gpu = make_mig_gpu(7, inside)
    devices = mig_devices(gpu)
    assert [(d.label, d.shares_memory_of, d.total_bytes, d.used_bytes) for d in devices] == [
        ("7:3:0", None, 40 * GIB, GIB),
        ("7:3:1", "7:3:0", 40 * GIB, GIB),
        ("7:9", None, 20 * GIB, GIB),
    ]
    assert [[process.pid for process in d.processes] for d in devices] == [[1, 2], [2], [3]]
    assert devices[0].unattributed_bytes == GIB // 4
    assert [device_of(gpu, process).label for process in inside] == ["7:3:0", "7:3:1", "7:9", "7"]
    assert devices[1].name == "NVIDIA H100 80GB HBM3 MIG 2c.3g.40gb"


def test_a_gpu_that_is_not_in_mig_mode_has_none():
    process = make_process(1)
    assert mig_devices(make_gpu(0, [process])) == ()
    assert mig_devices(make_gpu(0, [process], mig=())) == ()
    assert device_of(gpu := make_gpu(0, [process]), process) is gpu


def test_a_device_has_a_fault_for_each_unknown_figure():
    gpu = make_mig_gpu(0, faults=(Fault(field="mig", code="NO_PERMISSION", message="not allowed"),))
    unread = replace(gpu, mig=tuple(replace(device, used_bytes=None, total_bytes=None) for device in gpu.mig))
    assert {device.reason("total_bytes") for device in mig_devices(unread)} == {"not allowed"}
    assert {device.processes for device in mig_devices(replace(unread, processes=None))} == {None}
