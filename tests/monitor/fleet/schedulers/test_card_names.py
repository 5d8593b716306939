import pytest

from vramtop.monitor.fleet.schedulers import match_card


@pytest.mark.parametrize(
    ("name", "features", "cards"),
    [
        ("a100", (), ["a100-40gb", "a100-80gb"]),
        ("a100", ("ib", "gpu_mem_80gb"), ["a100-80gb"]),
        ("a100", ("a100-40",), ["a100-40gb"]),
        ("a100", ("ib_80g", "mem_40gb"), ["a100-40gb", "a100-80gb"]),  # a network's speed, and the host's memory
        ("nvidia_a100_80gb_pcie", (), ["a100-80gb"]),
        ("nvidia_a100-sxm4-80gb", (), ["a100-80gb"]),
        ("a100_80", (), ["a100-80gb"]),
        ("a30_pcie", (), ["a30"]),
        ("v100", ("v100-32g",), ["v100-32gb"]),
        ("rtx3090", (), ["rtx-3090"]),
        ("rtx_3090_ti", (), ["rtx-3090-ti"]),
        ("2080ti", (), ["rtx-2080-ti"]),
        ("nvidia_geforce_rtx_4090", (), ["rtx-4090"]),
        ("l40s", (), ["l40s"]),
        ("h100", (), ["h100-80gb", "h100-94gb"]),
        (None, ("rome", "h200"), ["h200"]),
        (None, ("h200", "a30"), []),  # which of them?
        (None, ("rome", "avx512"), []),
        ("rtx_6000", (), []),  # Turing's has 24 GB, Ada's 48, Blackwell's 96
        ("tesla", (), []),
        ("k80", (), []),
        ("gpu", (), []),
    ],
)
def test_cards_behind_a_name(name: str | None, features: tuple[str, ...], cards: list[str]) -> None:
    assert [card.gpu and card.gpu.name for card in match_card(name, features).cards] == cards


def test_a_feature_that_told_the_card_is_kept_for_the_constraint() -> None:
    assert match_card("a100", ("gpu_mem_80gb",)).feature == "gpu_mem_80gb"
    assert match_card(None, ("rome", "h200")).feature == "h200"
    assert match_card("h200", ("h200",)).feature is None


def test_a_mig_device_has_at_least_the_gb_of_its_name() -> None:
    match = match_card("nvidia_a100_3g.20gb")
    assert match.mig == "3g.20gb"
    low, high = (card.total_bytes for card in match.cards)
    assert low < 19_968 << 20 < high  # what nvidia-smi shows for it
