"""Pictures of robots, drawn without a screen in a program of its own: MuJoCo asks once how to draw, at its import."""

from __future__ import annotations

import ctypes.util
import json
import os

import pytest
from fault_cases import run_python

SCRIPT = """
import json, sys
import gymnasium
import numpy as np
import shoal

told = {}
for task in ("HalfCheetah-v5", "Ant-v5", "Reacher-v5"):
    options = {"render_mode": "rgb_array", "width": 96, "height": 64}
    with shoal.make_vec(task, 2, env_kwargs=options, engine="native") as envs:
        envs.reset(seed=1)
        start = envs.render()
        for _ in range(20):
            envs.step(np.full(envs.action_space.shape, 0.3, np.float32))
        later = envs.render()
        again = envs.render()
    told[task] = {
        "shape": [list(frame.shape) for frame in start],
        "dtype": str(start[0].dtype),
        "is_drawn": bool(start[0].std() > 10),
        "moves": bool((start[0] != later[0]).any()),
        "is_its_own": bool((later[0] != later[1]).any()),
        "is_repeated": bool((later[0] == again[0]).all()),
    }
class Ball(shoal.MujocoEnv):
    model = "<mujoco><worldbody><body><freejoint/><geom size='.5'/></body></worldbody></mujoco>"
    camera = {"distance": 3.0, "lookat": np.zeros(3)}

    def observe(self, d):
        return d.qpos

options = {"render_mode": "depth_array", "camera_name": "track"}
with shoal.make_pool("Hopper-v5", 1, env_kwargs=options, engine="native") as pool:
    pool.reset(seed=1)
    (depth,) = pool.render()
twin = gymnasium.make("Hopper-v5", **options)
twin.reset(seed=1)
theirs = twin.render()
told["depth"] = [list(depth.shape), str(depth.dtype), bool(np.allclose(depth, theirs, atol=1e-5))]
with shoal.make_pool(Ball, 1, env_kwargs={"render_mode": "depth_array"}, engine="native") as pool:
    pool.reset(seed=1)
    told["metres"] = round(float(pool.render()[0].min()), 2)
print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.skipif(ctypes.util.find_library("EGL") is None, reason="no library to draw with")
def test_robots_are_drawn_without_a_screen() -> None:
    done = run_python("-W", "ignore", "-c", SCRIPT, env={**os.environ, "MUJOCO_GL": "egl"})
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told.pop("depth") == [[480, 480], "float32", True], "as Gymnasium's"
    assert told.pop("metres") == 2.5, "from the camera to the ball"
    for task, picture in told.items():
        assert picture == {
            "shape": [[64, 96, 3]] * 2,
            "dtype": "uint8",
            "is_drawn": True,
            "moves": True,
            "is_its_own": True,
            "is_repeated": True,
        }, task
