"""A packed batch holds every sample whole, between the boundaries its counts name."""

import numpy as np

from vlarge.contracts import PackedBatch, Sample, SampleId
from vlarge.data.pack import pack


def _sample(frame: int, num_images: int, num_text: int, num_actions: int, dim: int = 4) -> Sample:
    rng = np.random.default_rng(frame)
    return Sample(
        id=SampleId(0, 1, frame),
        images={f"camera{i}": rng.integers(0, 256, (6, 6, 3)).astype(np.uint8) for i in range(num_images)},
        prompt_ids=rng.integers(0, 258, num_text),
        state_A=rng.normal(size=dim).astype(np.float32),
        actions_SA=rng.normal(size=(num_actions, dim)).astype(np.float32),
    )


def _assert_holds(batch: PackedBatch, sample: Sample) -> None:
    b = int(np.flatnonzero(batch.sample_ids_B3[:, 2] == sample.id.frame)[0])
    dim = batch.action_dims_B[b]
    image, text, action = (int(n[:b].sum()) for n in (batch.num_images_B, batch.num_text_B, batch.num_actions_B))
    for i, pixels in enumerate(sample.images.values()):
        np.testing.assert_array_equal(batch.images_NHWC[image + i], pixels)
    np.testing.assert_array_equal(batch.text_T[text : text + batch.num_text_B[b]], sample.prompt_ids)
    rows = batch.actions_SA[action : action + batch.num_actions_B[b]]
    np.testing.assert_array_equal(rows[:, :dim], sample.actions_SA)
    np.testing.assert_array_equal(batch.state_BA[b, :dim], sample.state_A)
    assert not rows[:, dim:].any()
    assert not batch.state_BA[b, dim:].any()


def test_every_sample_lies_between_its_counts() -> None:
    shapes = [(2, 9, 5, 4), (1, 7, 8, 4), (2, 9, 3, 6), (0, 7, 8, 2), (2, 5, 5, 4)]
    samples = [_sample(i, *shape) for i, shape in enumerate(shapes)]
    batch = pack(samples)
    assert batch.num_samples == 5
    for sample in samples:
        _assert_holds(batch, sample)
    assert batch.actions_SA.shape == (29, 6)
    assert batch.num_valid_values == sum(s.actions_SA.size for s in samples)
    assert (len(batch.images_NHWC), len(batch.text_T)) == (7, 37)


def test_equal_shapes_are_neighbours_in_their_order() -> None:
    samples = [_sample(i, 1 + i % 2, 5 + i % 3, 4) for i in range(12)]
    batch = pack(samples)
    keys = list(zip(batch.num_images_B, batch.num_text_B, batch.num_actions_B, batch.sample_ids_B3[:, 2], strict=True))
    assert keys == sorted(keys)


def test_dtypes() -> None:
    batch = pack([_sample(0, 1, 5, 4)])
    dtypes = {name: getattr(batch, name).dtype for name in batch.__dataclass_fields__}
    assert dtypes.pop("images_NHWC") == np.uint8
    assert {dtypes.pop(name) for name in ("state_BA", "actions_SA", "augment_N7")} == {np.dtype(np.float32)}
    assert set(dtypes.values()) == {np.dtype(np.int64)}


def test_no_sample_is_an_empty_batch() -> None:
    batch = pack([])
    assert (batch.num_samples, batch.num_valid_values) == (0, 0)
    assert batch.sample_ids_B3.shape == (0, 3)
    assert batch.images_NHWC.shape[0] == 0
