"""Write the tables of docs/explanation/accuracy.md from what ``make gpu`` has measured (``make figures``)."""

import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "accuracy"))

from accuracy_cases import GPU  # noqa: E402
from make_accuracy_tables import with_tables  # noqa: E402
from suite_results import SuiteResults, SuiteRow, read_results  # noqa: E402

from vramtop.estimator.common.sizes import GIB, MIB  # noqa: E402

PAGE = ROOT / "docs" / "explanation" / "accuracy.md"
NOTHING = "No GPU has been measured yet."
_FIGURES = ("allocated", "reserved", "device")
_METHODS = {"closed form": "formula", "deepest method": "predicted"}
_UNKNOWN = "-"


def tables(folder: Path = GPU) -> dict[str, str]:
    """Return the tables by the name of their place in the page."""
    found = [read_results(path) for path in sorted(folder.glob("*.json"))]
    sections = ["\n".join(_section(results)) for results in found if results.card is not None]
    return {"gpus": "\n\n".join(sections) or NOTHING}


def _section(results: SuiteResults) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    yield f"### {results.card}, {results.started[:10]}"
    yield from ("", f"Driver {results.driver or 'unknown'}; {versions}.")
    jobs = [row for row in results.rows if _step(row)]
    ran = [row for row in jobs if row.error is None]
    failed = [row for row in jobs if _step(row)["out_of_memory"] is not None]
    if ran:
        yield from ("", "#### Predictions beside it", "", *_accuracy(ran))
        yield from ("", "#### Jobs", "", *_jobs(ran))
        yield from ("", "#### What is held beyond the prediction", "", *_slack(ran))
    if failed:
        yield from ("", "#### Out of memory", "", *_failures(failed))
    for row in results.rows:
        if row.figures:
            yield from ("", f"#### {row.part}: {row.name}", "", *_program(row.figures))
    missing = [row for row in results.rows if row.error is not None and row not in failed]
    if missing:
        yield from ("", "#### Without a result", "", "| job or program | why |", "| --- | --- |")
        yield from (_line((f"{row.part}: {row.name}", row.error or "")) for row in missing)


def _accuracy(rows: Sequence[SuiteRow]) -> Iterator[str]:
    yield "| figure, method | rows | median error | signed | under by > 5 % | lowest |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for figure in _FIGURES:
        for method in _METHODS:
            errors = [error for row in rows if (error := _error(row, figure, method)) is not None]
            if errors:
                cells = (
                    f"{figure}, {method}",
                    str(len(errors)),
                    f"{statistics.median(map(abs, errors)):.1%}",
                    f"{statistics.median(errors):+.1%}",
                    f"{sum(error < -0.05 for error in errors) / len(errors):.0%}",
                    f"{min(errors):+.1%}",
                )
                yield _line(cells)


def _jobs(rows: Sequence[SuiteRow]) -> Iterator[str]:
    yield "| job | " + " | ".join(f"{figure} GiB | closed form | deepest" for figure in _FIGURES) + " | context GiB |"
    yield "| --- |" + " --- | --- | --- |" * len(_FIGURES) + " --- |"
    for row in rows:
        cells = [f"{row.part}: {row.name}"]
        for figure in _FIGURES:
            cells += [_gib(_seen(row, figure)), *(_percent(_error(row, figure, method)) for method in _METHODS)]
        yield _line((*cells, _gib(_step(row)["context_bytes"])))


def _slack(rows: Sequence[SuiteRow]) -> Iterator[str]:
    """Yield what the allocator reserved after the first and the last step, and the device beside the allocator."""
    yield "| job | steps | reserved, first step | reserved, all steps | predicted | device beyond reserved |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in rows:
        step = _step(row)
        first = [each["reserved"] or 0 for each in step["by_step"] if each["step"] <= 1]
        reserved, device = _seen(row, "reserved"), _seen(row, "device")
        beyond = None if device is None or reserved is None else device - reserved
        told = _told(row, "reserved", "deepest method")
        steps, all_of = str(len(step["allocated_by_step_bytes"])), (max(first) or None, reserved, told, beyond)
        yield _line((f"{row.part}: {row.name}", steps, *map(_gib, all_of)))


def _failures(rows: Sequence[SuiteRow]) -> Iterator[str]:
    yield "| job | where | held GiB | predicted GiB | predicted place |"
    yield "| --- | --- | --- | --- | --- |"
    for row in rows:
        place, told = _step(row)["out_of_memory"], (row.measured and row.measured["predicted"]) or row.formula
        where = f"{place['phase']}, step {place['step']}"
        predicted = (_gib(told["device_bytes"]), told["phase"]) if told else (_UNKNOWN, _UNKNOWN)
        yield _line((row.name, where, _gib(place["reserved_bytes"]), *predicted))


def _program(figures: Iterable[dict[str, Any]]) -> Iterator[str]:
    yield "| | |"
    yield "| --- | --- |"
    for figure in figures:
        words = (f"{_label(key)} {_value(key, value)}" for key, value in figure.items() if key != "name")
        yield _line((str(figure.get("name", "")), ", ".join(words)))


def _label(key: str) -> str:
    return key.removesuffix("_bytes").removesuffix("_seconds").replace("_", " ")


def _value(key: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if key.endswith("_bytes") and isinstance(value, int | float):
        return f"{value / MIB:,.0f} MiB"
    if key.endswith("seconds") and isinstance(value, int | float):
        return f"{value:.3g} s"
    return str(value)


def _step(row: SuiteRow) -> dict[str, Any]:
    """Return what was measured of a job; empty: nothing."""
    return dict(row.measured["measured"] or {}) if row.measured else {}


def _seen(row: SuiteRow, figure: str) -> int | None:
    step = _step(row)
    if figure == "device":
        return step["process_bytes"] if step["process_bytes"] is not None else step["device_bytes"]
    return step["max_allocated_bytes"] if figure == "allocated" else step["max_reserved_bytes"]


def _told(row: SuiteRow, figure: str, method: str) -> int | None:
    told = row.formula if method == "closed form" else row.measured["predicted"] if row.measured else None
    size: int | None = None if told is None else dict(told)[f"{figure}_bytes"]  # type: ignore[assignment]
    return size


def _error(row: SuiteRow, figure: str, method: str) -> float | None:
    seen, told = _seen(row, figure), _told(row, figure, method)
    return None if not seen or told is None else told / seen - 1


def _percent(error: float | None) -> str:
    return _UNKNOWN if error is None else f"{error:+.1%}"


def _gib(size: int | None) -> str:
    return _UNKNOWN if size is None else f"{size / GIB:.2f}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("%", "\u00a0%") for cell in cells) + " |"


def main() -> int:
    """Write the tables; say whether the page changed."""
    before = PAGE.read_text(encoding="utf-8")
    after = with_tables(before, tables())
    if after != before:
        PAGE.write_text(after, encoding="utf-8")
        print(PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
