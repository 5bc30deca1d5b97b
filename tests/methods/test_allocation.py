"""How a share of all kernels is spread over layers."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from methods.shared.allocation import erdos_renyi, uniform

sizes = st.tuples(st.integers(1, 64), st.integers(1, 64), st.just(3), st.just(3))
networks = st.lists(sizes, min_size=1, max_size=6).map(lambda several: dict(zip("abcdef", several, strict=False)))


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


def test_a_kernel_s_size_counts_and_shares_are_of_kernels():
    # (8 + 8 + 2) / 64 of 64 kernels to (8 + 8 + 6) / 576 of 64: as 81 to 11; of 128 kernels 32 stay.
    shares = erdos_renyi({"1x1": (8, 8, 1, 1), "3x3": (8, 8, 3, 3)}, 0.25)
    assert shares["1x1"] * 64 == pytest.approx(32 * 81 / 92)
    assert shares["3x3"] * 64 == pytest.approx(32 * 11 / 92)


def test_nothing_goes_where_everything_stays():
    assert erdos_renyi({"a": (4, 2, 3, 3), "b": (8, 8, 3, 3)}, 1.0) == {"a": 1.0, "b": 1.0}


@given(networks, st.floats(0.01, 1.0))
def test_shares_are_possible_and_keep_what_is_asked_for(shapes, kept):
    shares = erdos_renyi(shapes, kept)
    assert list(shares) == list(shapes)
    assert all(0 < share <= 1 for share in shares.values())
    assert kept_of_all(shapes, shares) == pytest.approx(kept)
    likely = {name: sum(shape) / math.prod(shape) for name, shape in shapes.items()}
    order = sorted(shapes, key=lambda name: likely[name])
    assert all(shares[one] <= shares[two] * (1 + 1e-9) for one, two in pairwise(order))
