"""Choosing among samples: slips go, class shares stay, and nothing but samples is needed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sfumato.errors import BadInput
from sfumato.methods.selection import _shares, check_keep, most_likely

SLIPS = 0.2


def draw(n: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Class c has a bright column c; a fifth of the images is drawn like the next class. The first pixel counts them."""
    labels = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), n, replacement=True, generator=random)
    slips = torch.rand(n, generator=random) < SLIPS
    shown = (labels + slips.long()) % 3
    images = torch.rand(n, 1, 6, 6, generator=random) * 60
    images[torch.arange(n), 0, :, shown + 1] += 180
    return images.to(torch.uint8), labels


def slips(images: torch.Tensor, labels: torch.Tensor) -> float:
    shown = images[:, 0, :, 1:4].float().mean(dim=1).argmax(dim=1)
    return float((shown != labels).float().mean())


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_slips_are_left_out_and_the_shares_of_classes_stay():
    plain = draw(2000, seeded())
    images, labels = most_likely(draw, 2000, 0.7, seeded())
    assert slips(*plain) > 0.15
    assert slips(images, labels) < 0.01
    drawn = draw(math.ceil(2000 / 0.7), seeded())[1].bincount()
    assert float((labels.bincount() - 0.7 * drawn).abs().max()) < 1


@pytest.mark.parametrize("keep", [0.999, 0.5, 0.1])
@pytest.mark.parametrize("n", [1, 7, 60])
def test_as_many_as_asked_for_all_among_those_drawn_and_the_same_for_a_seed(n, keep):
    images, labels = most_likely(draw, n, keep, seeded(n))
    assert len(images) == len(labels) == n
    drawn = draw(math.ceil(n / keep), seeded(n))
    pairs = [(i.numpy().tobytes(), int(c)) for i, c in zip(*drawn, strict=True)]
    chosen = [(i.numpy().tobytes(), int(c)) for i, c in zip(images, labels, strict=True)]
    places = [pairs.index(pair) for pair in chosen]
    assert places == sorted(places)  # as they were drawn
    again = most_likely(draw, n, keep, seeded(n))
    assert torch.equal(again[0], images)
    assert torch.equal(again[1], labels)


def test_one_class_alone_an_unmet_class_and_large_or_float_images():
    def alone(n, random):
        return torch.rand(n, 3, 40, 34, generator=random), torch.ones(n, dtype=torch.int64)

    assert most_likely(alone, 5, 0.5, seeded())[1].tolist() == [1] * 5

    def rare(n, random):
        images, labels = torch.rand(n, 1, 40, 34, generator=random), torch.arange(n) % 2
        labels[0] = 4 if n < 100 else 0  # the teacher, with thousands, never meets class 4
        return images, labels

    assert most_likely(rare, 19, 0.95, seeded())[1].bincount().tolist() == [9, 9, 0, 0, 1]
    assert most_likely(rare, 10, 0.5, seeded())[1].bincount().tolist() == [5, 5]


@given(st.lists(st.integers(0, 50), min_size=1).filter(any), st.floats(0, 1))
def test_shares_are_whole_add_up_and_are_no_more_than_there_are(counts, part):
    n = 1 + int(part * (sum(counts) - 1))
    found = _shares(np.array(counts), n)
    assert found.sum() == n
    assert (found <= counts).all()
    assert (abs(found - np.array(counts) * n / sum(counts)) < 1).all()


@pytest.mark.parametrize("keep", [0, 0.09, -1, 1.5, math.nan, True, "half", None])
def test_a_share_that_is_none_is_refused_and_the_borders_are_taken(keep):
    with pytest.raises(BadInput, match="keep is the share"):
        check_keep(keep)
    for share in (0.1, 1, 1.0, np.float64(0.5)):
        check_keep(share)
