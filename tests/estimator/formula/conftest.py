"""Fixtures of the tests that compare the closed form with torch."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def no_padding_mask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Report that no mask is needed, as transformers finds on real tensors without padding; fakes hold no values."""
    import torch
    from transformers import masking_utils

    monkeypatch.setattr(masking_utils, "is_tracing", lambda *_: False)
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda *_: None)
    yield
    torch.set_default_dtype(torch.float32)
