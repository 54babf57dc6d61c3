"""Stages undo what they do, survive JSON strictly, and are what a recipe asks for of a dataset."""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlarge.contracts import ACTION, STATE, InputError
from vlarge.data.config import DataConfig
from vlarge.data.stats import compute
from vlarge.data.tokens import ByteTokenizer
from vlarge.data.transforms import Normalizer, Preparation
from vlarge.data.transforms.configure import camera_slots, chain_for, prepared_stats
from vlarge.data.transforms.stages import Chain, Relative, Rename, Rescale, Select, Stage

TOP, HAND = "observation.images.top", "observation.images.hand"


@st.composite
def chains(draw: st.DrawFn, state_dim: int = 5, action_dim: int = 4) -> Chain:
    """Up to five stages that fit each other; all keep every action dimension, so that nothing is lost."""
    stages: list[Stage] = []
    for _ in range(draw(st.integers(0, 5))):
        match draw(st.sampled_from(["rename", "select", "rescale", "relative"])):
            case "rename":
                stages.append(Rename(((TOP, HAND), (HAND, TOP))))
            case "select":
                actions = draw(st.permutations(range(action_dim)))
                states = draw(st.permutations(range(state_dim)))[: draw(st.integers(action_dim, state_dim))]
                stages.append(Select(state_dim, tuple(states), tuple(actions), (0.0,) * action_dim))
                state_dim = len(states)
            case "rescale":
                factor = st.floats(0.1, 10) | st.floats(-10, -0.1)
                scales, offsets = (
                    [tuple(draw(st.lists(numbers, min_size=n, max_size=n))) for n in (state_dim, action_dim)]
                    for numbers in (factor, st.floats(-5, 5))
                )
                stages.append(Rescale(scales[0], offsets[0], scales[1], offsets[1]))
            case "relative":
                dims = draw(st.sets(st.integers(0, action_dim - 1), min_size=1))
                stages.append(Relative(tuple(sorted(dims))))
    return Chain(tuple(stages))


@settings(max_examples=150, deadline=None)
@given(chain=chains(), seed=st.integers(0, 2**32 - 1))
def test_inverse_returns_the_actions(chain: Chain, seed: int) -> None:
    rng = np.random.default_rng(seed)
    state, actions = rng.normal(size=5).astype(np.float32), rng.normal(size=(7, 4)).astype(np.float32)
    before = actions.copy()
    changed = chain.actions(actions, state)
    largest = max(1.0, float(np.abs(changed).max()))
    back = chain.actions_inverse(changed, state)
    np.testing.assert_allclose(back, actions, rtol=0, atol=1e-5 * largest)
    np.testing.assert_array_equal(actions, before)  # nobody's array was changed
    row_by_row = chain.actions(actions, np.tile(state, (7, 1)))
    np.testing.assert_allclose(row_by_row, changed, rtol=1e-6, atol=1e-6 * largest)


@settings(max_examples=50, deadline=None)
@given(chain=chains())
def test_json_gives_the_same_chain(chain: Chain) -> None:
    assert Chain.from_json(json.loads(json.dumps(chain.to_json()))) == chain


def test_relative_actions_are_measured_from_the_rescaled_state() -> None:
    chain = Chain((Rescale((2.0, 1.0), (0.0, 0.0), (1.0, 1.0), (0.0, 0.5)), Relative((0,))))
    actions = chain.actions(np.array([[7.0, 1.0], [8.0, 1.0]]), np.array([3.0, 9.0]))
    np.testing.assert_array_equal(actions, [[1.0, 1.5], [2.0, 1.5]])
    assert chain.uses_state
    assert not Chain(chain.stages[:1]).uses_state


def test_what_was_not_kept_comes_back_as_the_rest() -> None:
    chain = Chain((Select(3, (2, 0), (1,), (0.25, 9.0, -1.0)),))
    np.testing.assert_array_equal(chain.state(np.array([1.0, 2.0, 3.0])), [3.0, 1.0])
    back = chain.actions_inverse(np.array([[5.0], [6.0]], np.float32), np.zeros(3))
    np.testing.assert_array_equal(back, [[0.25, 5.0, -1.0], [0.25, 6.0, -1.0]])
    assert chain.dims_before(2, 1) == (3, 3)


def test_action_rows_are_every_pair_of_frame_and_step_where_actions_are_relative() -> None:
    state_TA, action_TA = np.array([[0.0], [10.0], [20.0]]), np.array([[1.0], [12.0], [23.0]])
    rows = np.concatenate(list(Chain((Relative((0,)),)).action_rows(state_TA, action_TA, horizon=2)))
    assert sorted(rows[:, 0].tolist()) == [1, 2, 3, 12, 13]
    longer = np.concatenate(list(Chain((Relative((0,)),)).action_rows(state_TA, action_TA, horizon=9)))
    assert sorted(longer[:, 0].tolist()) == [1, 2, 3, 12, 13, 23]
    absolute = list(Chain().action_rows(state_TA, action_TA, horizon=2))
    np.testing.assert_array_equal(np.concatenate(absolute), action_TA)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"stage": "mirror"}, "unknown stage 'mirror'"),
        ({}, "unknown stage None"),
        ({"stage": "relative", "dims": [0], "mask": [True]}, "unknown field mask"),
        ({"stage": "relative"}, "lacks dims"),
        ({"stage": "relative", "dims": [0, 0]}, "different whole numbers"),
        ({"stage": "relative", "dims": ["0"]}, "different whole numbers"),
        ({"stage": "select", "state_dim": 2, "state_dims": [2], "action_dims": [0], "rest": [0.0]}, "below 2"),
        ({"stage": "rename", "cameras": [["a", "x"], ["b", "x"]]}, "twice"),
        (
            {"stage": "rescale", "state_scale": [], "state_offset": [], "action_scale": [0.0], "action_offset": [0.0]},
            "no scale may be 0",
        ),
        (
            {"stage": "rescale", "state_scale": [1.0], "state_offset": [], "action_scale": [], "action_offset": []},
            "1 state scales, 0 state offsets",
        ),
    ],
)
def test_a_damaged_stage_is_refused(stored: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Chain.from_json([stored])


# Of a recipe and a dataset.


@dataclass
class Table:
    state_TA: np.ndarray
    action_TA: np.ndarray


@dataclass
class FakeDataset:
    """Three frames in one episode, two joints and a gripper."""

    camera_keys: tuple[str, ...] = (TOP, HAND)
    state_dim: int = 3
    action_dim: int = 3
    features: dict[str, Any] = field(
        default_factory=lambda: {
            STATE: {"names": {"motors": ["shoulder", "elbow", "gripper"]}},
            ACTION: {"names": ["shoulder", "elbow", "gripper"]},
        }
    )
    episodes: tuple[int, ...] = (0,)

    def read_table(self, episode: int) -> Table:
        state = np.array([[1, 2, 0], [2, 4, 1], [3, 6, 0]], np.float32)
        return Table(state, state + np.array([0.5, 0.25, 0], np.float32))


MEAN = np.array([2.5, 4.25, 0.5])


def _chain(**config: Any) -> Chain:
    return chain_for(DataConfig(**config), FakeDataset(), MEAN)  # type: ignore[arg-type]


def test_no_stage_unless_asked_for() -> None:
    assert _chain() == Chain()


def test_dimensions_by_name_number_and_range() -> None:
    for kept in (("gripper", "shoulder"), ("2", "0"), ("2:", ":1")):
        assert _chain(action_dims=kept) == Chain((Select(3, (0, 1, 2), (2, 0), (2.5, 4.25, 0.5)),))
    assert _chain(state_dims=("0:2",)).state(np.arange(3)).tolist() == [0, 1]


def test_relative_dimensions_are_those_of_the_dataset() -> None:
    kept = Select(3, (1, 2), (1, 2), (2.5, 4.25, 0.5))
    chain = _chain(state_dims=("1:",), action_dims=("1:",), relative_actions=("elbow",))
    assert chain == Chain((kept, Relative((0,))))
    assert _chain(relative_actions=("0:2",)) == Chain((Relative((0, 1)),))


def test_rescale_fills_in_what_was_not_given() -> None:
    chain = _chain(action_scale=(1.0, 1.0, -1.0), action_offset=(0.0, 0.0, 1.0))
    assert chain == Chain((Rescale((1.0,) * 3, (0.0,) * 3, (1.0, 1.0, -1.0), (0.0, 0.0, 1.0)),))


def test_cameras_get_the_models_names() -> None:
    slots = ("base_0_rgb", "left_wrist_0_rgb")
    assert _chain(camera_slots=slots).camera(HAND) == "left_wrist_0_rgb"
    with pytest.raises(InputError, match="names 1 cameras, in use are 2"):
        camera_slots(DataConfig(camera_slots=slots[:1]), FakeDataset())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"state_dims": ("wrist",)}, "data.state_dims: there is no dimension 'wrist'; the dataset has shoulder, elbow"),
        ({"action_dims": ("3",)}, "no dimension '3'"),
        ({"action_dims": ("0", "shoulder")}, "twice"),
        ({"action_dims": ("5:",)}, "or none"),
        ({"action_dims": ("0",), "relative_actions": ("elbow",)}, "elbow, which data.action_dims leaves out"),
        ({"state_dims": ("0",), "relative_actions": ("elbow",)}, "no state dimension beside it"),
        ({"state_scale": (1.0,)}, "data.state_scale has 1 values; there are 3"),
    ],
)
def test_a_wrong_setting_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _chain(**config)


def test_statistics_are_of_relative_values_over_the_horizon() -> None:
    chain = _chain(relative_actions=("shoulder",))
    stats = prepared_stats([FakeDataset()], [chain], 2, "")  # type: ignore[list-item]
    assert stats[ACTION].count == 5
    assert (stats[ACTION].min[0], stats[ACTION].max[0]) == (0.5, 1.5)
    assert (stats[ACTION].min[1], stats[ACTION].max[1]) == (2.25, 6.25)
    assert stats[STATE].count == 3


def _preparation(chain: Chain) -> Preparation:
    table = FakeDataset().read_table(0)
    state = Normalizer("min_max", compute([chain.state(table.state_TA)]))
    action = Normalizer("min_max", compute(chain.action_rows(table.state_TA, table.action_TA, 2)))
    return Preparation(16, 2, (TOP, HAND), ByteTokenizer(), state, action, 200, chain)


def test_a_preparation_goes_through_the_chain_and_back() -> None:
    chain = _chain(
        camera_slots=("base", "wrist"), state_dims=("0:2",), action_dims=("0:2",), relative_actions=("0", "1")
    )
    preparation = Preparation.from_json(json.loads(json.dumps(_preparation(chain).to_json())))
    table = FakeDataset().read_table(0)
    state, actions = table.state_TA[1], table.action_TA[1:]
    images, _, state_A = preparation.observation({TOP: np.zeros((8, 8, 3), np.uint8)}, state, "go")
    assert list(images) == ["base"]
    np.testing.assert_allclose(state_A, [0, 0], atol=1e-6)
    normalised = preparation.actions(actions, state)
    assert np.abs(normalised).max() <= 1 + 1e-6
    back = preparation.actions_inverse(normalised, state)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back[:, :2], actions[:, :2], rtol=1e-6)
    np.testing.assert_allclose(back[:, 2], 0.5)
    preparation.check_fit("policy", "robot", (TOP, HAND), 3, 3)
    with pytest.raises(InputError, match="3 action dimensions, robot has 2"):
        preparation.check_fit("policy", "robot", (TOP, HAND), 3, 2)
    with pytest.raises(ValueError, match="relative to the state"):
        preparation.actions(actions)


def test_a_model_looks_through_another_datasets_cameras() -> None:
    first = _preparation(_chain(camera_slots=("base", "wrist")))
    other = first.look_through({"observation.images.gripper": "wrist", "observation.images.front": "base"})
    assert other.cameras == ("observation.images.front", "observation.images.gripper")  # the model's order
    assert [other.chain.camera(key) for key in other.cameras] == ["base", "wrist"]
    with pytest.raises(InputError, match=r"looks through wrist; name the cameras with data\.camera_slots"):
        first.look_through({"observation.images.front": "base"})


def test_stages_that_do_not_fit_are_refused() -> None:
    stats = compute([np.arange(8.0).reshape(4, 2)])
    normalizer = Normalizer("min_max", stats)
    for stage in (Relative((2,)), Rescale((1.0,) * 3, (0.0,) * 3, (1.0,) * 2, (0.0,) * 2)):
        with pytest.raises(InputError, match="do not fit each other"):
            Preparation(16, 2, (), ByteTokenizer(), normalizer, normalizer, 200, Chain((stage,)))
    chain = Chain((Select(2, (0,), (0, 1), (0.0, 0.0)),))
    with pytest.raises(InputError, match=r"stages give \(1, 2\) dimensions"):
        Preparation(16, 2, (), ByteTokenizer(), normalizer, normalizer, 200, chain)


def test_an_unknown_entry_of_a_preparation_is_refused() -> None:
    data = _preparation(Chain()).to_json()
    with pytest.raises(InputError, match="colour, unknown here"):
        Preparation.from_json(data | {"colour": 1})
    with pytest.raises(InputError, match="damaged"):
        Preparation.from_json(data | {"stages": [{"stage": "rename", "cameras": [["a"]]}]})
