"""The loss of a step counts valid action values only, and does not depend on how the batch is split."""

import numpy as np
import torch
from torch import Tensor, nn

from vlarge.contracts import PackedBatch, Sample
from vlarge.data.pack import pack
from vlarge.models.flow import PI0_FLOW
from vlarge.train.step import draw


class Echo(nn.Module):
    """Predicts a multiple of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, batch: PackedBatch, noised_SA: Tensor, time_D: Tensor, num_draws: int) -> Tensor:
        return self.scale * noised_SA


def sample(frame: int, num_actions: int, action_dim: int) -> Sample:
    rng = np.random.default_rng(frame)
    actions_SA = rng.normal(size=(num_actions, action_dim)).astype(np.float32)
    return Sample((0, 0, frame), {}, np.arange(3), np.zeros(action_dim, np.float32), actions_SA)  # type: ignore[arg-type]


def loss(samples: list[Sample], num_valid: float, action_dim: int = 5) -> float:
    batch = pack(samples)
    draws = draw(batch, PI0_FLOW, seed=3, step=2, num_draws=2, action_dim=action_dim)
    return draws.errors_of(Echo(), batch, 2).sum().item() / (2 * num_valid)


def test_columns_that_a_sample_does_not_have_enter_no_loss() -> None:
    """A model of more action dimensions than the data: its further columns are not asked for."""
    wide = sample(0, 4, 5)
    narrow = Sample(wide.id, {}, wide.prompt_ids, wide.state_A[:2], wide.actions_SA[:, :2])
    silent = Sample(wide.id, {}, wide.prompt_ids, wide.state_A, np.pad(narrow.actions_SA, ((0, 0), (0, 3))))
    assert 0 < loss([narrow], 1) < loss([silent], 1)  # declared columns count, even where they are zero


def test_a_batch_in_parts_gives_the_same_sum() -> None:
    samples = [sample(0, 4, 5), sample(1, 2, 3), sample(2, 1, 5)]
    num_valid = 4 * 5 + 2 * 3 + 1 * 5
    parts = loss(samples[:1], num_valid) + loss(samples[1:], num_valid)
    assert np.isclose(loss(samples, num_valid), parts, rtol=1e-6)


def test_padding_counts_only_where_it_is_asked_for() -> None:
    """openpi's loss is the mean over all columns of the model, those that the robot does not have included."""
    narrow, wide = sample(0, 4, 2), sample(0, 4, 2)
    wide = Sample(wide.id, {}, wide.prompt_ids, wide.state_A, np.pad(wide.actions_SA, ((0, 0), (0, 3))))

    def errors(sample: Sample, *, over_padding: bool) -> Tensor:
        batch = pack([sample])
        draws = draw(batch, PI0_FLOW, seed=3, step=2, num_draws=1, action_dim=5, over_padding=over_padding)
        return draws.errors_of(Echo(), batch, 1).sum()

    asked = errors(narrow, over_padding=True)
    torch.testing.assert_close(asked, errors(wide, over_padding=False))
    assert asked > errors(narrow, over_padding=False)
