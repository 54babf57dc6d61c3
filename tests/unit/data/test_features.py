"""Names of a feature's dimensions, as datasets in use write them."""

import pytest

from vlarge.data.features import dimension_names


@pytest.mark.parametrize(
    "names", [["pan", "lift"], {"motors": ["pan", "lift"]}, [["pan", "lift"]], {"arm": {"motors": ["pan", "lift"]}}]
)
def test_names_are_found_in_their_groups(names: object) -> None:
    assert dimension_names({"names": names}, 2) == ["pan", "lift"]


@pytest.mark.parametrize("names", [None, ["pan"], [["pan"], ["lift"]], {"a": ["pan"], "b": ["lift"]}, "pq", [1, 2]])
def test_without_a_name_for_each_they_are_numbered(names: object) -> None:
    assert dimension_names({"names": names}, 2, "joint_") == ["joint_0", "joint_1"]


def test_one_dimension_has_its_name() -> None:
    assert dimension_names({"names": ["width"]}, 1) == dimension_names({"names": [["width"]]}, 1) == ["width"]
