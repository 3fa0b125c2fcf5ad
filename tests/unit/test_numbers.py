"""Numbers and text cross to the table and back as they were; sizes are the service's."""

import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stafette.core.errors import NotFiniteError
from stafette.core.numbers import empty_set, from_stored, item_size, to_stored

finite = st.floats(allow_nan=False, allow_infinity=False)


@given(finite)
def test_a_float_comes_back_as_it_went_in(value: float) -> None:
    assert float(from_stored(to_stored(value))) == value


@given(st.integers(-(10**30), 10**30))
def test_a_whole_number_comes_back_as_it_went_in(value: int) -> None:
    back = from_stored(to_stored(Decimal(value)))
    assert (back, type(back)) == (value, int)


@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.integers(-(10**9), 10**9),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_plain_values_come_back_as_they_went_in(value: Any) -> None:
    assert from_stored(to_stored(value)) == value


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, Decimal("NaN"), Decimal("Infinity")]
)
def test_a_number_that_is_not_finite_is_refused_with_its_path(bad: Any) -> None:
    with pytest.raises(NotFiniteError, match=r"a\.b\[1\]"):
        to_stored({"a": {"b": [0, bad]}})


def test_empty_sets_vanish_and_other_empty_values_stay() -> None:
    value = {"gone": set(), "text": "", "list": [], "map": {}, "zero": 0, "false": False}
    assert to_stored(value) == {name: v for name, v in value.items() if name != "gone"}
    assert empty_set(frozenset())
    assert not empty_set([])


def test_what_the_table_does_not_hold_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="object"):
        to_stored({"a": object()})


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (None, 1),
        (True, 1),
        ("", 0),
        ("é", 2),
        (b"abc", 3),
        (0, 2),
        (7, 2),
        (-7, 3),
        (100, 2),
        (123, 3),
        (Decimal("1.5"), 2),
        ([], 3),
        (["ab", 1], 3 + 1 + 2 + 1 + 2),
        ({"k": "v"}, 3 + 1 + 1 + 1),
        ({"a", "bc"}, 3),
    ],
)
def test_sizes_are_those_of_the_service(value: Any, size: int) -> None:
    assert item_size({"name": value}) == len("name") + size
