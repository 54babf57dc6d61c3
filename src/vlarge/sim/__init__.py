"""Environments behind one contract: `make_env("metaworld/drawer-close-v3")`."""

from vlarge.sim.registry import list_envs, make_env

__all__ = ["list_envs", "make_env"]
