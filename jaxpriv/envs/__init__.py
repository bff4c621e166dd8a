"""Environments for reinforcement learning under gymnax's protocol.

Importing the package registers `jaxpriv/MultiRoom-*` with gymnax.
"""

from jaxpriv.envs import grid, multiroom
from jaxpriv.envs.multiroom import (
    ACTIONS,
    PRESETS,
    EnvParams,
    FloorMaps,
    MultiRoom,
    Preset,
    State,
    from_minigrid_seed,
    generate,
    stack,
)

__all__ = [
    "ACTIONS",
    "PRESETS",
    "EnvParams",
    "FloorMaps",
    "MultiRoom",
    "Preset",
    "State",
    "from_minigrid_seed",
    "generate",
    "grid",
    "multiroom",
    "stack",
]
