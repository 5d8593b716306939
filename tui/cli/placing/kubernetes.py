"""``vramtop fit JOB --kubernetes``: resource requests and node affinity of a pod that takes the job, as YAML.

Labels of nodes: GPU feature discovery, docs/gpu-feature-discovery/README.md of NVIDIA/k8s-device-plugin:
``nvidia.com/gpu.product`` is the product's name with dashes for spaces, ``nvidia.com/gpu.memory`` its memory in MiB,
and ``nvidia.com/gpu.count`` the GPUs of the node. GPUs that are shared or in MIG mode have another product
(``...-SHARED``, ``...-MIG-1g.5gb``), so that they are not chosen.
"""

from typing import TYPE_CHECKING, Any

import yaml

from vramtop.estimator.common import MIB
from vramtop.estimator.job import Gpu, catalogue
from vramtop.monitor.board.fit import Verdict
from vramtop.monitor.fleet.schedulers import CardMatch, CardSize

from .answer import Answer, Target, whole_gib
from .card_judge import GOOD, CardJudge, need_sentence

if TYPE_CHECKING:
    from ..json_types import KubernetesFacts

_KEY = "nvidia.com/gpu"


def kubernetes_answer(judge: CardJudge, target: Target) -> Answer:
    """Return the part of a pod's specification that the job needs.

    Args:
        judge: of the job.
        target: only this card, or any with this memory.
    """
    need = need_sentence(judge.budget)
    per_pod = judge.ranks_per_usual_node
    pods = judge.ranks // per_pod
    verdict, gpus = _cards(judge, target)
    if verdict not in GOOD:
        where = f"a {target.gpu.label}" if target.gpu else "any card of the catalogue, alone or with one rank on each"
        nothing: KubernetesFacts = {"manifest": None, "pods": pods, "gpus": []}
        sentence = f"It does not fit on {where}; vramtop fit --gpu-type NAME says what would make it fit."
        return Answer(verdict=verdict, need=need, sentence=sentence, json=nothing)
    manifest = _manifest(judge, target, gpus, per_pod)
    text = yaml.safe_dump(manifest, sort_keys=False, width=120).splitlines()
    each = f"each of {pods} pods" if pods > 1 else "the pod"
    sentence = f"Put this into the specification of {each}: {per_pod} GPU{'s' * (per_pod > 1)}, one rank on each."
    notes = [
        "The affinity needs the labels of GPU feature discovery, which the NVIDIA GPU operator runs.",
        *(["How much RAM the job needs is not known, so no memory is requested."] if judge.budget.host is None else []),
    ]
    facts: KubernetesFacts = {"manifest": manifest, "pods": pods, "gpus": [gpu.name for gpu in gpus]}
    return Answer(verdict=verdict, need=need, sentence=sentence, json=facts, request=text, notes=notes)


def _cards(judge: CardJudge, target: Target) -> tuple[Verdict, list[Gpu]]:
    """Return the verdict, and the cards that fit; none where only a size is given."""
    if target.gpu is None and target.memory_bytes:
        return judge.verdict(_match(None, target.memory_bytes)), []
    gpus = [target.gpu] if target.gpu else [gpu for gpu in catalogue() if not gpu.unified]
    verdicts = {gpu.name: judge.verdict(_match(gpu, gpu.total_bytes)) for gpu in gpus}
    for wanted in GOOD:
        found = [gpu for gpu in gpus if verdicts[gpu.name] == wanted]
        if found:
            return verdicts[found[0].name], found
    return next(iter(verdicts.values())) if target.gpu else "does_not_fit", []


def _match(gpu: Gpu | None, total_bytes: int) -> CardMatch:
    return CardMatch(cards=(CardSize(gpu=gpu, total_bytes=total_bytes),))


def _manifest(judge: CardJudge, target: Target, gpus: list[Gpu], per_pod: int) -> dict[str, Any]:
    resources: dict[str, Any] = {_KEY: per_pod}
    if judge.budget.host is not None:
        resources["memory"] = f"{whole_gib(judge.host_bytes(per_pod))}Gi"
    smallest = min((gpu.total_bytes for gpu in gpus), default=target.memory_bytes or 0)
    rules: list[dict[str, Any]] = [_rule("memory", "Gt", [_least_label(judge, smallest, gpus)])]
    products = sorted({_label(name) for gpu in gpus for name in gpu.nvml_names})
    if products:
        rules.insert(0, _rule("product", "In", products))
    if per_pod > 1:
        rules.append(_rule("count", "Gt", [str(per_pod - 1)]))
    terms = {"nodeSelectorTerms": [{"matchExpressions": rules}]}
    return {
        "spec": {
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            "containers": [
                {"name": "trainer", "resources": {"requests": dict(resources), "limits": dict(resources)}},
            ],
        },
    }


def _least_label(judge: CardJudge, smallest: int, gpus: list[Gpu]) -> str:
    """Return the MiB that the label must exceed: what the smallest of the cards needs and its driver keeps.

    Drivers of one card differ by up to 1 % in the total that they report, so that is no measure.
    """
    budgets = [judge.on(CardSize(gpu=gpu, total_bytes=gpu.total_bytes))[0] for gpu in gpus] or [judge.budget]
    need = max(budget.peak.device_bytes for budget in budgets)
    reserved = max((gpu.reserved_bytes or 0 for gpu in gpus), default=0)
    return str(max(0, min(smallest, need + reserved) // MIB - 1))


def _rule(label: str, operator: str, values: list[str]) -> dict[str, Any]:
    return {"key": f"{_KEY}.{label}", "operator": operator, "values": values}


def _label(name: str) -> str:
    """Return a product's name as GPU feature discovery writes it."""
    return name.replace(" ", "-")
