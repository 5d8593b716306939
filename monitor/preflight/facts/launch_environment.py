"""Environment of a job that is started with a launch line, and the number of its ranks on one machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from vramtop.estimator.common import InputError
from vramtop.estimator.job import Job
from vramtop.estimator.readers.program import Launch, read_world_size, yaml_layer
from vramtop.estimator.readers.source import LayeredSettings, SettingsLayer, as_int, read_table
from vramtop.estimator.readers.tools import parse_launch, split_launch_line

_ADDRESS_OPTIONS = ("master_addr", "main_process_ip", "rdzv_endpoint")
_PORT_OPTIONS = ("master_port", "main_process_port")


def job_environment(environ: Mapping[str, str], launch: Sequence[str] | None) -> dict[str, str]:
    """Return the job's environment: ours, the assignments before its command, and the rendezvous of its launcher."""
    found = dict(environ)
    if launch is None:
        return found
    parsed = parse_launch(split_launch_line(launch))
    found.update(parsed.assignments)
    options = LayeredSettings(parsed.options)
    address, port = options.find(*_ADDRESS_OPTIONS), options.find(*_PORT_OPTIONS)
    if address is not None:
        host, _, own_port = str(address.value).rpartition(":") if ":" in str(address.value) else (address.value, "", "")
        found["MASTER_ADDR"] = str(host).strip("[]")
        if own_port:
            found["MASTER_PORT"] = own_port
    if port is not None:
        found["MASTER_PORT"] = str(port.value)
    return found


def count_local_ranks(job: Job, launch: Sequence[str] | None, environ: Mapping[str, str], folder: Path) -> int | None:
    """Return how many of the job's ranks run on one machine; None: not stated.

    Args:
        job: the job, with all of its ranks.
        launch: its launch line; None: there is none.
        environ: environment of the job; inside a Slurm allocation it states the number of machines.
        folder: folder that relative paths in the launch line count from.
    """
    ranks = job.parallel.world_size
    if launch is not None:
        parsed = parse_launch(split_launch_line(launch))
        world_size = read_world_size(parsed, LayeredSettings(parsed.options, _accelerate_file(parsed, folder)), environ)
        if as_int(world_size.ranks) == ranks and world_size.per_node is not None:
            return world_size.per_node
    nodes = environ.get("SLURM_NNODES", "")
    if nodes.isdecimal() and int(nodes) > 1 and ranks % int(nodes) == 0:
        return ranks // int(nodes)
    return None


def _accelerate_file(launch: Launch, folder: Path) -> SettingsLayer:
    named = launch.options.get("config_file")
    if named is None:
        return {}
    path = folder / str(named.value)
    try:
        return yaml_layer(read_table(path), source=path.name)
    except InputError:  # reported when the job is read
        return {}
