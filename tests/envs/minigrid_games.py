"""Games of the original Minigrid, which the tests replay, and features of floor maps."""

from collections import deque

import numpy as np
from minigrid.envs import MultiRoomEnv

from jaxpriv.envs import grid

VECTORS = ((1, 0), (0, 1), (-1, 0), (0, -1))
LEFT, RIGHT, FORWARD, TOGGLE = 0, 1, 2, 5


def original(preset, **options):
    """Minigrid's environment of a preset."""
    size = preset.max_room_size
    return MultiRoomEnv(
        preset.num_rooms, preset.num_rooms, size, max_steps=preset.max_steps, **options
    )


def packed(env):
    """Cells of a Minigrid environment, packed."""
    return grid.pack(env.grid.encode())


def shortest_plan(cells, position, direction):
    """Actions from a start to the goal, with a toggle before every closed door."""
    start = (*position, direction)
    came_from, queue = {start: None}, deque([start])
    while queue:
        x, y, d = state = queue.popleft()
        if cells[x, y] == grid.GOAL:
            break
        ahead = x + VECTORS[d][0], y + VECTORS[d][1]
        moves = [((x, y, (d - 1) % 4), LEFT), ((x, y, (d + 1) % 4), RIGHT)]
        if cells[ahead] != grid.WALL:
            moves.append(((*ahead, d), FORWARD))
        for new, action in moves:
            if new not in came_from:
                came_from[new] = state, action
                queue.append(new)
    else:
        raise AssertionError("the goal cannot be reached")
    plan = []
    while came_from[state]:
        before, action = came_from[state]
        plan += [action, TOGGLE] if action == FORWARD and cells[state[:2]] >= 128 else [action]
        state = before
    return plan[::-1]


def random_policy(rng):
    """Random actions, of which the useful ones are frequent."""
    return lambda env: int(rng.choice(7, p=[0.15, 0.15, 0.35, 0.05, 0.05, 0.2, 0.05]))


def walking_policy(rng):
    """The shortest plan to the goal, with a random action in ten."""
    plan = []

    def act(env):
        if rng.random() < 0.1:
            plan.clear()
            return int(rng.integers(7))
        if not plan or env.step_count == 0:
            position = tuple(int(number) for number in env.agent_pos)
            plan[:] = shortest_plan(packed(env), position, int(env.agent_dir))
        return plan.pop(0)

    return act


def play(env, seed, policy):
    """Plays one game; returns actions, and images, rewards and flags of its steps."""
    observation, _ = env.reset(seed=seed)
    actions, images, rewards, flags = [], [observation["image"]], [], []
    while not flags or not any(flags[-1]):
        actions.append(policy(env))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        images.append(observation["image"])
        rewards.append(np.float32(reward))
        flags.append((terminated, truncated))
    return actions, np.array(images), np.array(rewards), np.array(flags)


def path_length(cells, position):
    """Number of cells from a position to the goal, doors included."""
    distances, queue = {position: 0}, deque([position])
    while queue:
        x, y = queue.popleft()
        if cells[x, y] == grid.GOAL:
            return distances[x, y]
        for dx, dy in VECTORS:
            new = x + dx, y + dy
            if new not in distances and cells[new] != grid.WALL:
                distances[new] = distances[x, y] + 1
                queue.append(new)
    raise AssertionError("the goal cannot be reached")


def room_size(cells, position):
    """Width and height of the room around a position, without walls."""
    x, y = position
    stops = cells & 15 != 1
    stops = stops & (cells != grid.GOAL)
    spans = []
    for line, middle in ((stops[:, y], x), (stops[x], y)):
        ends = np.flatnonzero(line)
        spans.append(int(ends[ends > middle].min() - ends[ends < middle].max() - 1))
    return tuple(spans)


def features(cells, position, direction, goal):
    """Numbers that describe a floor map, by name."""
    position, goal = (tuple(int(n) for n in pair) for pair in (position, goal))
    width, height = room_size(cells, position)
    goal_width, goal_height = room_size(cells, goal)
    x, y = np.nonzero(cells == grid.WALL)
    colours = cells[cells & 15 == grid.DOOR] >> 4 & 7
    return {
        "start_x": position[0] // 4,
        "start_y": position[1] // 4,
        "direction": int(direction),
        "goal_x": goal[0] // 4,
        "goal_y": goal[1] // 4,
        "first_size": width * 32 + height,
        "last_size": goal_width * 32 + goal_height,
        "walls": len(x) // 4,
        "left_end": int(x.min()),
        "top_end": int(y.min()),
        "right_end": int(x.max()),
        "bottom_end": int(y.max()),
        "distinct_colours": len(set(colours.tolist())),
        "first_colour": int(colours[0]),
        "path": path_length(cells, position) // 2,
    }
