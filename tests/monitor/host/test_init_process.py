"""The process that starts a machine's services is no training process; a container's may start the only one."""

import os
from pathlib import Path

import pytest

from vramtop.estimator.common.records import replace
from vramtop.monitor.host.process_info import UnreadableProcessError, read_process
from vramtop.monitor.host.run_processes import find_run_processes


def test_init_is_no_training_process() -> None:
    init = replace(read_process(os.getpid()), pid=1, argv=("/sbin/init",), exe=Path("/sbin/init"))
    with pytest.raises(
        UnreadableProcessError, match=r"Process 1 \(/sbin/init\) is not a training process; vramtop --once"
    ):
        find_run_processes(init)


@pytest.mark.parametrize(
    ("argv", "is_init"),
    [
        (("/usr/lib/systemd/systemd", "--system"), True),
        (("supervisord", "-c", "all.conf"), True),
        (("/usr/bin/tini", "--", "python", "train.py"), False),
        (("bash", "run.sh"), False),
        (("torchrun", "train.py"), False),
    ],
)
def test_a_container_may_be_started_by_its_only_program(argv: tuple[str, ...], is_init: bool) -> None:
    assert replace(read_process(os.getpid()), pid=1, argv=argv).is_init is is_init
