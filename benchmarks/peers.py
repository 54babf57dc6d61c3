"""LeRobot's own π0.5 at sizes of ours, with weights of ours: what the model benchmarks stand beside."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlarge.contracts import PackedBatch
from vlarge.models.pi0.config import Pi0Config
from vlarge.models.pi0.convert import to_lerobot


def lerobot_pi05(sizes: Pi0Config, weights: dict[str, Tensor], *, checkpointing: bool = False) -> Any:
    """Its PI05Pytorch module. LeRobot knows two sizes of each part: others are put in where it looks them up."""
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.pi05 import modeling_pi05 as theirs

    def gemma(variant: str) -> Any:
        width, mlp = (sizes.width, sizes.mlp) if variant == "gemma_2b" else (sizes.expert_width, sizes.expert_mlp)
        return theirs.GemmaConfig(width, sizes.depth, mlp, sizes.heads, sizes.kv_heads, sizes.head_dim)

    class SmallPaliGemma(theirs.PaliGemmaForConditionalGenerationWithPiGemma):
        def __init__(self, config: Any) -> None:
            config.text_config.vocab_size = sizes.vocab_size
            vision = config.vision_config
            vision.hidden_size, vision.num_hidden_layers = sizes.vision_width, sizes.vision_depth
            vision.num_attention_heads, vision.intermediate_size = sizes.vision_heads, sizes.vision_mlp
            vision.patch_size, vision.projection_dim = sizes.patch, sizes.width
            super().__init__(config)

    class SmallExpert(theirs.PiGemmaForCausalLM):
        def __init__(self, config: Any) -> None:
            config.vocab_size = sizes.vocab_size
            super().__init__(config)

    theirs.get_gemma_config = gemma
    theirs.PaliGemmaForConditionalGenerationWithPiGemma = SmallPaliGemma
    theirs.PiGemmaForCausalLM = SmallExpert
    config = theirs.PI05Config(
        device="cpu",
        dtype="float32",
        image_resolution=(sizes.image_size, sizes.image_size),
        chunk_size=sizes.action_horizon,
        n_action_steps=sizes.action_horizon,
        max_action_dim=sizes.max_action_dim,
        num_inference_steps=sizes.denoise_steps,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (sizes.max_action_dim,))},
        gradient_checkpointing=checkpointing,
    )
    policy = theirs.PI05Policy(config)
    policy.load_state_dict(to_lerobot(weights, sizes))
    return policy.model


def padded_inputs(batch: PackedBatch, sizes: Pi0Config, *, cameras: int, slots: int) -> list[Any]:
    """The first arguments of its `forward`: images, their masks, tokens, their mask; a missing camera is all -1."""
    num = batch.num_samples
    shape = (num, 3, sizes.image_size, sizes.image_size)
    images, present = torch.full((cameras, *shape), -1.0), torch.zeros(cameras, num, dtype=torch.bool)
    tokens, real = torch.zeros(num, slots, dtype=torch.long), torch.zeros(num, slots, dtype=torch.bool)
    pictures = iter(torch.from_numpy(batch.images_NHWC).permute(0, 3, 1, 2).float() / 127.5 - 1.0)
    ends = np.cumsum(batch.num_text_B)
    for b, (count, length) in enumerate(zip(batch.num_images_B.tolist(), batch.num_text_B.tolist(), strict=True)):
        for camera in range(count):
            images[camera, b], present[camera, b] = next(pictures), True
        tokens[b, :length] = torch.from_numpy(batch.text_T[ends[b] - length : ends[b]])
        real[b, :length] = True
    return [list(images), list(present), tokens, real]
