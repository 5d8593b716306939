"""Settings that change memory and are not counted, with the direction of the doubt."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...job import UncertaintyDirection
from .evidence import Component, FindingCollector
from .layered_settings import LayeredSettings, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class UncountedSetting:
    """A setting that changes memory in a known direction, where it is on."""

    path: str
    direction: UncertaintyDirection
    components: tuple[Component, ...]
    why: str


def warn_of_uncounted(
    settings: LayeredSettings,
    uncounted: Iterable[UncountedSetting],
    findings: FindingCollector,
    *,
    is_off: Callable[[Setting], bool],
) -> None:
    """Warn of each of these settings that is on, and mark the components that it concerns."""
    for each in uncounted:
        setting = settings.find(each.path)
        if setting is None or is_off(setting):
            continue
        findings.warn(f"{setting.origin}: {each.why}, which is not counted.")
        findings.add_uncertainty(each.direction, *each.components)
