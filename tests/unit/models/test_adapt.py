"""Parts are frozen and projections get adapters as the recipe says; what is saved needs no adapter."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from vlarge.contracts import InputError
from vlarge.models.adapt import LowRankLinear, adapt, merged, part_of
from vlarge.models.config import ModelConfig
from vlarge.models.pi0.config import PRESETS
from vlarge.models.pi0.model import Pi0

SIZES = replace(PRESETS["tiny"], depth=2, vision_depth=1, max_action_dim=3)


def model_of(**settings: object) -> Pi0:
    torch.manual_seed(0)
    model = Pi0(SIZES)
    adapt(model, ModelConfig(**settings))  # type: ignore[arg-type]
    return model


def trained(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_a_frozen_part_is_all_of_that_part() -> None:
    everything = trained(model_of())
    left = trained(model_of(freeze=("vision", "language")))
    assert left == {name for name in everything if part_of(name, Pi0.PARTS) == "expert"}


def test_adapters_are_all_that_is_trained_of_their_projections() -> None:
    model = model_of(freeze=("vision", "language", "expert"), lora_rank=3, lora_on=("prefix_layers.*.q", "*.v"))
    names = trained(model)
    assert {name.rsplit(".", 1)[-1] for name in names} == {"lora_down", "lora_up"}
    adapted = {name.rsplit(".", 1)[0] for name in names}
    assert "prefix_layers.0.query.q" in adapted
    assert "expert_layers.1.key_value.v" in adapted
    assert "vision.blocks.0.v" in adapted
    assert "expert_layers.0.query.q" not in adapted
    assert all(part_of(name, Pi0.PARTS) for name in names)


def test_what_an_adapter_changes_is_frozen_and_the_rest_is_not() -> None:
    everything, names = trained(model_of()), trained(model_of(lora_rank=3, lora_on=("*.v",)))
    own = {name for name in everything if ".v." in name}
    adapters = {f"{name.rsplit('.', 1)[0]}.{kind}" for name in own for kind in ("lora_down", "lora_up")}
    assert names == everything - own | adapters


@pytest.mark.parametrize("bias", [False, True])
def test_an_adapter_starts_without_effect_and_can_be_added_in(bias: bool) -> None:
    base = nn.Linear(6, 5, bias=bias)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    model = nn.ModuleDict({"q": LowRankLinear(base, rank=2, alpha=3.0)})
    x = torch.randn(4, 6)
    torch.testing.assert_close(model["q"](x), base(x), rtol=0, atol=0)
    with torch.no_grad():
        model["q"].lora_up.normal_()
    state = merged(model.state_dict(), 3.0 / 2)
    assert set(state) == {f"q.{name}" for name in before}
    plain = nn.Linear(6, 5, bias=bias)
    plain.load_state_dict({name.removeprefix("q."): value for name, value in state.items()})
    torch.testing.assert_close(model["q"](x), plain(x))
    assert not torch.allclose(plain(x), base(x))
    torch.testing.assert_close(base.weight, before["weight"], rtol=0, atol=0)


def test_what_does_not_exist_is_named() -> None:
    with pytest.raises(InputError, match=r"pi05 has no part 'tower'; parts: vision, language, expert"):
        model_of(freeze=("vision", "tower"))
    with pytest.raises(InputError, match=r"no projection of pi05 is called '\*\.q_proj'; there are.* \*\.q,"):
        model_of(lora_rank=2, lora_on=("*.q_proj",))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lora_rank": 4, "lora_on": ()}, "model.lora_on names no projection"),
        ({"lora_rank": 4, "lora_on": ("",)}, "model.lora_on names no projection"),
        ({"lora_alpha": 4.0}, "there are none: set model.lora_rank"),
        ({"lora_rank": 33, "lora_on": ("*.k",)}, "model.lora_rank is 33: .*k has a rank of at most 32 itself"),
    ],
)
def test_adapters_that_make_no_sense_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        model_of(**settings)
