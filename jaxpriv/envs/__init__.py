"""Environments for reinforcement learning under gymnax's protocol.

Importing the package registers `jaxpriv/MultiRoom-*` with gymnax.
"""

from jaxpriv.envs import grid, multiroom, render
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
from jaxpriv.envs.render import as_gymnasium, draw_frame, save_gif

__all__ = [
    "ACTIONS",
    "PRESETS",
    "EnvParams",
    "FloorMaps",
    "MultiRoom",
    "Preset",
    "State",
    "as_gymnasium",
    "draw_frame",
    "from_minigrid_seed",
    "generate",
    "grid",
    "multiroom",
    "render",
    "save_gif",
    "stack",
]
