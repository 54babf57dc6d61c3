"""Prompts, ids and normalised numbers beside LeRobot's own processors and transformers' tokenizers, run here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small_tokenizers
import tokenizers
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vlarge.data.prompts import encode_prompt
from vlarge.data.stats import compute
from vlarge.data.tokens import JsonTokenizer
from vlarge.data.transforms import Normalizer

pytestmark = pytest.mark.long

TASKS = st.text(max_size=40) | st.sampled_from(
    [
        "",
        "\n",
        "pick_up the_cup",
        " put it\nthere \n",
        "a\n\n",
        "物体 🤖",
        "<|im_start|>",
        "Task: x, State: 3;\nAction: ",
    ]
)
STATES = st.lists(st.floats(-1.5, 1.5) | st.sampled_from([-1.0, 1.0, 0.0, -1.0000001]), min_size=1, max_size=9)
EXAMPLES = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def lerobot() -> SimpleNamespace:
    from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
    from lerobot.lerobot_types import TransitionKey
    from lerobot.policies.pi0.processor_pi0 import Pi0NewLineProcessor
    from lerobot.policies.pi05.processor_pi05 import Pi05PrepareStateTokenizerProcessorStep
    from lerobot.processor import NewLineTaskProcessorStep, NormalizerProcessorStep, TokenizerProcessorStep
    from transformers import PreTrainedTokenizerFast

    return SimpleNamespace(
        FeatureType=FeatureType,
        NormalizationMode=NormalizationMode,
        PolicyFeature=PolicyFeature,
        TransitionKey=TransitionKey,
        Pi0NewLineProcessor=Pi0NewLineProcessor,
        Pi05PrepareStateTokenizerProcessorStep=Pi05PrepareStateTokenizerProcessorStep,
        NewLineTaskProcessorStep=NewLineTaskProcessorStep,
        NormalizerProcessorStep=NormalizerProcessorStep,
        TokenizerProcessorStep=TokenizerProcessorStep,
        PreTrainedTokenizerFast=PreTrainedTokenizerFast,
    )


def their_ids(lerobot: SimpleNamespace, step: Any, content: str, task: str, state: np.ndarray) -> list[int]:
    """What LeRobot's step, then its tokenizer step make of one sample."""
    library = lerobot.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(content))
    keys = lerobot.TransitionKey
    transition = {
        keys.OBSERVATION: {"observation.state": torch.from_numpy(state)[None]},
        keys.COMPLEMENTARY_DATA: {"task": [task]},
    }
    tokenize = lerobot.TokenizerProcessorStep(tokenizer=library, max_length=400, padding="do_not_pad")
    observation = tokenize(step(transition))[keys.OBSERVATION]
    return list(observation["observation.language.tokens"][0].tolist())


@EXAMPLES
@given(task=TASKS, state=STATES)
def test_pi05(lerobot: SimpleNamespace, task: str, state: list[float]) -> None:
    content, state_A = small_tokenizers.paligemma(), np.array(state, np.float32)
    theirs = their_ids(lerobot, lerobot.Pi05PrepareStateTokenizerProcessorStep(), content, task, state_A)
    assert encode_prompt(JsonTokenizer(content, "file"), task, state_A, 400).tolist() == theirs


@EXAMPLES
@given(task=TASKS)
def test_pi0_where_the_task_needs_no_cleaning(lerobot: SimpleNamespace, task: str) -> None:
    task, content, state_A = " ".join(task.replace("_", " ").split()), small_tokenizers.paligemma(), np.zeros(2)
    theirs = their_ids(lerobot, lerobot.Pi0NewLineProcessor(), content, task, state_A)
    assert encode_prompt(JsonTokenizer(content, "file"), task, state_A, 400, "task").tolist() == theirs


@EXAMPLES
@given(task=TASKS)
def test_smolvla(lerobot: SimpleNamespace, task: str) -> None:
    content, state_A = small_tokenizers.smolvlm(), np.zeros(2)
    theirs = their_ids(lerobot, lerobot.NewLineTaskProcessorStep(), content, task, state_A)
    assert encode_prompt(JsonTokenizer(content, "file"), task, state_A, 400, "instruction").tolist() == theirs


@pytest.mark.parametrize(
    ("method", "theirs"), [("quantile", "QUANTILES"), ("min_max", "MIN_MAX"), ("mean_std", "MEAN_STD")]
)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(1e-2, 1e3))
def test_normalised_numbers(lerobot: SimpleNamespace, method: str, theirs: str, seed: int, scale: float) -> None:
    rows = np.random.default_rng(seed).normal(1, scale, (60, 3))
    stats = compute([rows])
    values = {name: np.asarray(value) for name, value in stats.to_json().items()}
    kind = lerobot.FeatureType.ACTION
    step = lerobot.NormalizerProcessorStep(
        features={"action": lerobot.PolicyFeature(type=kind, shape=(3,))},
        norm_map={kind: lerobot.NormalizationMode[theirs]},
        stats={"action": values},
    )
    expected = step._normalize_action(torch.from_numpy(rows), inverse=False)
    normalised = Normalizer(method, stats)(rows)
    np.testing.assert_allclose(normalised, expected.numpy(), rtol=1e-6, atol=1e-6)
    back = step._normalize_action(torch.from_numpy(normalised.astype(np.float64)), inverse=True)
    np.testing.assert_allclose(Normalizer(method, stats).inverse(normalised), back.numpy(), rtol=1e-6, atol=1e-6)
