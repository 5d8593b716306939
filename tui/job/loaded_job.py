"""A job and where it was read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from vramtop.estimator.job.job_file.changes import job_differences, with_changes
from vramtop.estimator.job.job_file.load_and_save import names_user_code

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job.job import Job
    from vramtop.estimator.readers.source.evidence import DeviceChoice, JobReading


COMMAND_LINE = "command line"


class LoadedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job and where it was read from."""

    job: Job
    notes: tuple[str, ...] = ()
    """Warnings about settings that were not understood."""
    file: Path | None = None
    """The job file; None for anything else."""
    reading: JobReading | None = None
    """The settings read from another tool's launch line or file; None for other jobs."""
    tool: str | None = None
    """Name of that tool; None where it is not known."""
    place: str | None = None
    """``command line``, or the name of that tool's file."""
    origins: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The place where each value was read, by dotted key."""
    typed: frozenset[str] = frozenset()
    """Keys that the flags of the command line set."""
    missing: tuple[str, ...] = ()
    """Required keys that were not found."""
    script: str | None = None
    """Training script that stands for a model without a closed form; its start is the job's program."""
    program: Job | None = None
    """The program of the launch line, for a rehearsal; None: not a Python program, or the user declined."""
    unread: str | None = None
    """Why the launch line could not be read, so that the job is a program; None: it was read, or not to be."""
    at_usual_sizes: Job | None = None
    """What was read, where only batch or length are not known, with the usual ones; None: more is missing."""

    @property
    def why_unread(self) -> tuple[str, ...]:
        """Why the launch line could not be read, as a sentence; empty: it was read."""
        return () if self.unread is None else (f"vramtop could not read this job: {self.unread.rstrip('.')}.",)

    def unknown(self, budget: Budget | None) -> tuple[str, ...]:
        """Return what was not read of a program, or what its budget does not know; empty: all is known."""
        warnings = self.reading.warnings if self.reading is not None else ()
        return tuple(warnings) or ((budget.doubt,) if budget is not None and budget.doubt else ()) or self.missing

    @property
    def is_partly_read(self) -> bool:
        """Whether something that memory depends on was not understood, or may have been missed in a script."""
        return self.reading is not None and bool(self.reading.uncertainties or self.reading.script)

    @property
    def stated(self) -> frozenset[str]:
        """Keys whose value was found somewhere; the others have defaults."""
        return self.typed | self.origins.keys()

    @property
    def assumed_versions(self) -> tuple[str, ...]:
        """Versions of libraries that a script speaks for, each with the reason."""
        found = self.reading.assumed_versions() if self.reading is not None else {}
        return tuple(text for key, text in found.items() if key not in self.typed)

    @property
    def devices(self) -> DeviceChoice | None:
        """The GPUs that its launch line, script or job file chooses; None: it takes those of the environment."""
        if names := self.job.target.devices:
            from vramtop.estimator.readers.source.evidence import DeviceChoice

            text = ",".join(names)
            return DeviceChoice(origin="target.devices", text=text, visible=text)
        return self.reading.devices if self.reading is not None else None

    @property
    def open_degree(self) -> str | None:
        """Key whose value is left to the number of GPUs, such as ``parallel.data_shard``; None: none, or several."""
        missing = [key for key in self.missing if key in ("parallel.data_shard", "parallel.data_replicate")]
        return missing[0] if self.reading is not None and len(missing) == 1 else None

    def spread_over(self, count: int, whose: str, given: Mapping[str, Any] | None = None) -> LoadedJob:
        """Return it over so many GPUs, if it leaves their number open and they can be divided by its other degrees.

        Args:
            count: number of GPUs.
            whose: GPUs they are.
            given: values that the user gave, by dotted job key; None: those in which the job differs from its reading.
        """
        parallel, key, reading = self.job.parallel, self.open_degree, self.reading
        within = parallel.tensor * parallel.pipeline * parallel.context
        if key is None or reading is None or count % within:
            return self
        gpus = f"the {count} GPUs of {whose}"
        return msgspec.structs.replace(
            self,
            job=reading.job({**(self._changes(reading) if given is None else given), key: count // within}),
            missing=tuple(each for each in self.missing if each != key),
            origins={**self.origins, key: gpus},
            notes=(*self.notes, f"The job is spread over {gpus}."),
        )

    def finding_gpus(self, count: int | None) -> LoadedJob:
        """Return it with so many GPUs for its one process, unless that says itself how many, or is vramtop's own.

        None: their number is not known.
        """
        if count is None or self.script is not None:
            return self
        if self.open_degree is not None:
            return self.spread_over(count, "this machine")
        jobs = {name: getattr(self, name) for name in ("job", "program")}
        found = {
            name: msgspec.structs.replace(job, program=msgspec.structs.replace(job.program, gpus=count))
            for name, job in jobs.items()
            if job is not None and job.program is not None and job.program.gpus == 1
        }
        if self.reading is not None and self.reading.one_per_gpu is not None and self.job.parallel.world_size == 1:
            return msgspec.structs.replace(self, **found)._with_processes(self.reading, count)
        if count < 2:
            return self
        reading, ranks = self.reading, self.job.parallel.world_size
        rule = reading.spreads_layers if reading is not None else None
        if reading is not None and reading.more_gpus is not None and ranks < count:
            notes = dict.fromkeys([*self.notes, reading.more_gpus.format(gpus=count)])
            return msgspec.structs.replace(self, **found, notes=tuple(notes))
        if rule is not None and ranks == 1:
            spread = {"parallel.device_map": rule, "parallel.pipeline": count}
            found["job"] = with_changes(self.job, spread)
            origins = dict.fromkeys(spread, f"device_map={rule!r} over the {count} GPUs that one process finds")
            return msgspec.structs.replace(self, **found, origins={**self.origins, **origins})
        return msgspec.structs.replace(self, **found)

    def _with_processes(self, reading: JobReading, count: int) -> LoadedJob:
        """Return it with so many processes, of which one was counted."""
        spread = {"parallel.strategy": "ddp" if count > 1 else "none", "parallel.data_replicate": count}
        with_all = reading.job(self._changes(reading) | spread)
        steps = with_all.training.gradient_accumulation
        training = msgspec.structs.replace(self.job.training, gradient_accumulation=steps)
        job = msgspec.structs.replace(self.job, parallel=with_all.parallel, unsure=with_all.unsure, training=training)
        origins = dict.fromkeys(spread, f"one process for each of the {count} GPUs")
        notes = tuple(each for each in self.notes if each != reading.one_per_gpu)
        return msgspec.structs.replace(self, job=job, notes=notes, origins={**self.origins, **origins})

    def _changes(self, reading: JobReading) -> dict[str, Any]:
        """Return what was changed since it was read, without what follows from the number of processes."""
        from vramtop.estimator.readers.source.evidence import ACCUMULATION

        changed = job_differences(reading.job(), self.job)
        if reading.global_batch is not None and ACCUMULATION not in self.typed:
            changed.pop(ACCUMULATION, None)
        return changed

    @property
    def is_typed(self) -> bool:
        """Whether it is a model with flags alone, whose config.json is known."""
        return self.file is None and self.reading is None and not names_user_code(self.job.model.id)

    @property
    def is_launch_line(self) -> bool:
        """Whether it is a launch line, or a program that is read as if it was started without arguments."""
        return self.place == COMMAND_LINE
