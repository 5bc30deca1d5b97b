"""The division of the remaining weights among layers."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from methods.masks import distributions

sizes = st.tuples(st.integers(1, 64), st.integers(1, 64), st.just(3), st.just(3))
networks = st.lists(sizes, min_size=1, max_size=6).map(lambda several: dict(zip("abcdef", several, strict=False)))


def of_shapes(distribution):
    return lambda shapes, kept: distribution({name: torch.empty(shape) for name, shape in shapes.items()}, kept)


uniform, erdos_renyi = of_shapes(distributions.uniform), of_shapes(distributions.erdos_renyi)


def kept_of_all(shapes, shares):
    kernels = {name: shape[0] * shape[1] for name, shape in shapes.items()}
    return sum(shares[name] * kernels[name] for name in shapes) / sum(kernels.values())


def test_uniform_is_the_same_everywhere():
    assert uniform({"a": (4, 2, 3, 3), "b": (8, 8, 3, 3)}, 0.25) == {"a": 0.25, "b": 0.25}


def test_layers_keep_in_proportion_to_their_dimensions_sum_over_product():
    # (4 + 2 + 6) / 72 of 8 kernels to (8 + 8 + 6) / 576 of 64: as 12 to 22; 72 kernels, of which 18 stay.
    shares = erdos_renyi({"a": (4, 2, 3, 3), "b": (8, 8, 3, 3)}, 0.25)
    assert shares["a"] * 8 == pytest.approx(18 * 12 / 34)
    assert shares["b"] * 64 == pytest.approx(18 * 22 / 34)


def test_a_layer_keeps_no_more_than_it_has_and_others_share_the_rest():
    shapes = {"small": (2, 2, 3, 3), "middle": (4, 4, 3, 3), "wide": (8, 8, 3, 3)}  # 4, 16 and 64 kernels
    shares = erdos_renyi(shapes, 0.5)  # 42 of 84 by 10, 14 and 22: 9.1 of the 4 would go to the first
    assert shares["small"] == 1.0
    assert shares["middle"] * 16 == pytest.approx(38 * 14 / 36)
    assert shares["wide"] * 64 == pytest.approx(38 * 22 / 36)


def test_what_fits_only_until_others_were_capped_is_capped_too():
    shapes = {"small": (2, 2, 3, 3), "middle": (4, 4, 3, 3), "wide": (8, 8, 3, 3)}
    shares = erdos_renyi(shapes, 0.6)  # 50.4: middle would get 46.4 * 14 / 36 of its 16
    assert shares == {"small": 1.0, "middle": 1.0, "wide": pytest.approx((50.4 - 20) / 64)}


def test_shares_are_of_weights_whatever_the_size_of_a_kernel():
    # (32 + 32 + 2) / 1024 of 1,024 weights to (8 + 8 + 6) / 576 of 576: as 66 to 22; of 1,600 weights 160 remain.
    shares = erdos_renyi({"1x1": (32, 32, 1, 1), "3x3": (8, 8, 3, 3)}, 0.1)
    assert shares["1x1"] * 1024 == pytest.approx(160 * 66 / 88)
    assert shares["3x3"] * 576 == pytest.approx(160 * 22 / 88)


def test_by_score_divides_as_the_largest_scores_of_all_layers_are_divided():
    scores = {"a": torch.arange(8.0).view(4, 2), "b": 6.5 + torch.arange(4.0).view(2, 2)}
    assert distributions.by_score(scores, 0.5) == {"a": 2 / 8, "b": 1.0}


@given(networks, st.floats(0.01, 1.0))
def test_shares_are_possible_and_keep_what_is_asked_for(shapes, kept):
    shares = erdos_renyi(shapes, kept)
    assert list(shares) == list(shapes)
    assert all(0 < share <= 1 for share in shares.values())
    assert kept_of_all(shapes, shares) == pytest.approx(kept)
    likely = {name: sum(shape) / math.prod(shape) for name, shape in shapes.items()}
    order = sorted(shapes, key=lambda name: likely[name])
    assert all(shares[one] <= shares[two] * (1 + 1e-9) for one, two in pairwise(order))
