"""vlarge's packed models as a policy of LeRobot: importing this registers `--policy.type=vlarge`."""

from lerobot_policy_vlarge.configuration_vlarge import VlargeConfig as VlargeConfig

__all__ = ["VlargeConfig"]
