"""Models of one's own: what an author of a ``MujocoEnv`` writes, and what becomes of it."""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces

mujoco = pytest.importorskip("mujoco")
pytest.importorskip("mujoco.batch")
import shoal  # noqa: E402
from shoal.envs.mujoco.env import MujocoEnv  # noqa: E402
from shoal.errors import (  # noqa: E402
    ArgumentError,
    BackendUnavailable,
    EnvCallError,
    EnvConstructError,
    EnvResetError,
    EnvStepError,
    MissingAttribute,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal import Pool

MODEL = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <body name="pole">
      <joint name="hinge" axis="0 1 0" damping="0.1"/>
      <geom type="capsule" fromto="0 0 0 0 0 -1" size="0.05" mass="1"/>
      <site name="tip" pos="0 0 -1"/>
    </body>
    <body name="ball" pos="2 0 -1.95"><freejoint/><geom size="0.1" mass="1"/></body>
    <geom type="plane" size="5 5 1" pos="0 0 -2"/>
  </worldbody>
  <actuator><motor joint="hinge" ctrlrange="-2 2"/></actuator>
</mujoco>
"""


class Swing(MujocoEnv):
    """Swing a pole up."""

    model = MODEL
    frame_skip = 3
    fields = ("site_xpos", "cfrc_ext")
    info = {"height": np.float64, "hinge": (np.float64, (1,))}
    step_info = {"work": np.float64}
    max_episode_steps = 50

    def __init__(self, *, limit: float = 2.0, **options: Any) -> None:
        super().__init__(**options)
        self.limit = limit

    def start(self, rng: np.random.Generator) -> Any:
        qpos = self.qpos0.copy()
        qpos[0] = rng.uniform(-0.1, 0.1)
        return qpos, self.qvel0

    def observe(self, d: Any) -> Any:
        return np.concatenate((d.qpos[:, :1], d.qvel[:, :1], d.cfrc_ext[:, 2, 3:]), axis=1)

    def track(self, d: Any) -> Any:
        return d.qpos[:, :1]

    def reward(self, d: Any) -> Any:
        d.info["work"] = d.action[:, 0] * (d.after - d.before)[:, 0]
        return d.site_xpos[:, 0, 2]

    def terminated(self, d: Any) -> Any:
        return np.abs(d.qpos[:, 0]) > self.limit

    def report(self, d: Any) -> None:
        d.info["height"] = d.site_xpos[:, 0, 2]
        d.info["hinge"] = d.qpos[:, :1]


class ByHand:
    """The same with one ``MjData``, as it would be written without shoal."""

    def __init__(self, seed: int) -> None:
        self.model = mujoco.MjModel.from_xml_string(MODEL)
        self.data = mujoco.MjData(self.model)
        self.data.qpos[0] = np.random.Generator(np.random.PCG64(seed)).uniform(-0.1, 0.1)
        mujoco.mj_forward(self.model, self.data)

    def step(self, action: Any) -> tuple[Any, float, float]:
        data, before = self.data, self.data.qpos[0]
        data.ctrl[:] = action
        mujoco.mj_step(self.model, data, 3)
        mujoco.mj_rnePostConstraint(self.model, data)
        obs = np.concatenate((data.qpos[:1], data.qvel[:1], data.cfrc_ext[2, 3:]))
        return obs, data.site_xpos[0, 2], action[0] * (data.qpos[0] - before)


@pytest.fixture
def pool(make_pool: Callable[..., Pool]) -> Iterator[Pool]:
    return make_pool(Swing, 3)  # type: ignore[return-value]


def test_it_is_what_one_would_write_by_hand(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Swing, 3, env_kwargs={"limit": np.inf})
    assert pool.spec.observation.space == spaces.Box(-np.inf, np.inf, (5,), np.float64)
    assert pool.spec.action.space == spaces.Box(-2.0, 2.0, (1,), np.float32)
    assert pool.spec.metadata["render_fps"] == 33
    pool.reset(seed=4)
    hands = [ByHand(4 + i) for i in range(3)]
    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = rng.uniform(-2, 2, (3, 1)).astype(np.float32)
        batch = pool.step(actions)
        for row, hand in enumerate(hands):
            obs, reward, work = hand.step(actions[row])
            np.testing.assert_array_equal(batch.obs[row], obs)
            assert batch.reward[row] == reward
            np.testing.assert_allclose(batch.fields["work"][row], work, rtol=1e-12)
            assert batch.fields["hinge"][row, 0] == hand.data.qpos[0]
    assert (np.abs(batch.obs[:, 2:]).max(axis=1) > 0).all(), "the ball lies on the ground"


def test_episodes_end_where_the_env_says_or_at_the_limit(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Swing, 2, env_kwargs={"limit": 0.5})
    pool.reset(seed=1)
    for _ in range(50):
        batch = pool.step(np.array([[2.0], [0.0]], np.float32))
        if batch.terminated.any():
            break
    assert batch.terminated.tolist() == [True, False]
    for _ in range(51):
        batch = pool.step(np.zeros((2, 1), np.float32))
        if batch.truncated[1]:
            break
    assert batch.elapsed_step[1] == 50


@pytest.mark.parametrize("form", ["text", "file", "name", "path", "spec", "model"])
def test_models_of_every_form(
    form: str, make_pool: Callable[..., Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.xml"
    path.write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    given = {
        "text": MODEL,
        "file": str(path),
        "name": "model.xml",
        "path": Path("model.xml"),
        "spec": mujoco.MjSpec.from_string(MODEL),
        "model": mujoco.MjModel.from_xml_string(MODEL),
    }[form]
    kwargs = {"xml_file": given, "post_constraint": form != "model"}
    pool = make_pool(Swing, 2, env_kwargs=kwargs, engine="native")
    pool.reset(seed=1)
    assert pool.step(np.zeros((2, 1), np.float32)).obs.shape == (2, 5)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("<mujoco><wrong/></mujoco>", "(?s)cannot compile.*wrong"),
        (3, "expected an MjModel, an MjSpec, XML or a file, got int"),
        ("/no/such.xml", "there is no file /no/such.xml"),
        ("such.xml", "there is no file /.*such.xml, nor has Gymnasium one of this name"),
        (mujoco.MjModel.from_xml_string(MODEL), "contact forces need an MjSpec"),
    ],
)
def test_models_that_are_none(given: Any, told: str) -> None:
    with pytest.raises(EnvConstructError, match=told):
        shoal.make_pool(Swing, 1, env_kwargs={"xml_file": given})


def test_what_is_not_written_is_named() -> None:
    class Nothing(MujocoEnv):
        model = MODEL

    with pytest.raises(EnvConstructError, match=r"Nothing: write observe\(self, d\)"):
        shoal.make_pool(Nothing, 1)

    class Modelless(Swing):
        model = None

    with pytest.raises(EnvConstructError, match="Modelless: model: there is none"):
        shoal.make_pool(Modelless, 1)

    class Forgetful(Swing):
        fields = ("cfrc_ext",)

    with pytest.raises(EnvResetError, match=r"d has no field 'site_xpos'"):
        shoal.make_pool(Forgetful, 1).reset()


def test_observations_may_be_dicts(make_pool: Callable[..., Pool]) -> None:
    class Parts(Swing):
        def observe(self, d: Any) -> Any:
            return {"speed": d.qvel[:, :1].astype(np.float32), "angle": d.qpos[:, 0]}

    pool = make_pool(Parts, 2, env_kwargs={"frame_stack": 2})
    assert pool.spec.observation.space["speed"].shape == (2, 1)
    obs = pool.reset(seed=1).obs
    assert (obs["speed"].dtype, obs["angle"].shape) == (np.float32, (2, 2))
    later = pool.step(np.ones((2, 1), np.float32)).obs
    np.testing.assert_array_equal(later["angle"][:, 0], obs["angle"][:, 1])
    assert (later["angle"][:, 1] != obs["angle"][:, 1]).all()


class Weighted(Swing):
    """Every env has a pole of its own mass."""

    def prepare(self, batch: Any) -> None:
        batch.body("pole").mass = np.linspace(1.0, 3.0, batch.nsim)[:, None]
        batch.set_const()


def test_envs_with_masses_of_their_own(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Weighted, 3)
    pool.reset(seed=[1, 1, 1])
    assert [model.body("pole").mass[0] for model in pool.get_attr("model")] == [1.0, 2.0, 3.0]
    for _ in range(5):
        batch = pool.step(np.ones((3, 1), np.float32))
    assert len(np.unique(batch.obs[:, 1])) == 3, "a heavier pole is slower"
    pool.restore(pool.snapshot([2]), [0])
    assert pool.get_attr("model", [0])[0].body("pole").mass[0] == 3.0


def test_envs_that_are_alone_are_told_that_they_may_be_alike(make_pool: Callable[..., Pool]) -> None:
    with pytest.warns(UserWarning, match=r"Weighted.prepare gives .*body_mass.* engine='native'"):
        make_pool(Weighted, 2, engine="serial")


class Aimed(Swing):
    """Every env has a goal of its own, and nobody writes to the simulation."""

    def reward(self, d: Any) -> Any:
        super().reward(d)
        with pytest.raises(ValueError, match="read-only"):
            d.qpos[:, 0] *= 2
        return np.array([10.0, 20.0, 30.0])[d.env_id]


def test_methods_know_whose_rows_they_see(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Aimed, 3)
    pool.reset(seed=1)
    push = np.zeros((3, 1), np.float32)
    assert pool.step(push).reward.tolist() == [10.0, 20.0, 30.0]
    assert pool.step(push[:2], [2, 0]).reward.tolist() == [30.0, 10.0]
    assert pool.step(push[:1], [1]).reward.tolist() == [20.0]


class Frugal(Swing):
    """Computes its reward only if that has not been done yet, and tells its work only once."""

    def reward(self, d: Any) -> Any:
        if not hasattr(d, "angle"):
            d.angle = d.qpos[:, 0].copy()
        assert not d.info
        d.info["work"] = d.angle
        return d.angle


def test_what_methods_leave_in_d_ends_with_the_step(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Frugal, 3)
    pool.reset(seed=1)
    for ids in ([0, 1, 2], [0, 1, 2], [0, 1], [0, 1], [0, 2], [0, 2]):
        batch = pool.step(np.ones((len(ids), 1), np.float32), ids)
        np.testing.assert_array_equal(batch.reward, batch.obs[:, 0])


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(1), spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, ()), spaces.Dict(a=spaces.Box(-1, 1, (1,)))],
)
def test_an_action_space_that_is_not_one_of_controls(space: spaces.Space[Any]) -> None:
    class Odd(Swing):
        action_space = space

    with pytest.raises(EnvConstructError, match=r"Odd.action_space: expected a Box of shape \(1,\).* got "):
        shoal.make_pool(Odd, 3)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("reward", lambda d: -np.linalg.norm(d.qpos)),
        ("reward", lambda d: np.zeros((len(d.qpos), 1))),
        ("reward", lambda d: None),
        ("terminated", lambda d: (d.qpos > 9).any()),
        ("observe", lambda d: np.zeros((len(d.qpos) + 1, 5))),
        ("observe", lambda d: np.zeros(5)),
        ("track", lambda d: d.qpos[0, :1]),
    ],
)
def test_results_that_have_lost_their_rows_are_named(
    method: str, result: Callable[[Any], Any], num_envs: int, make_pool: Callable[..., Pool]
) -> None:
    def later(self: Any, d: Any) -> Any:
        return getattr(Swing, method)(self, d) if d.is_reset or not hasattr(d, "action") else result(d)

    pool = make_pool(type("Rowless", (Swing,), {method: later}), num_envs)
    pool.reset(seed=1)
    with pytest.raises(EnvStepError, match=rf"Rowless.{method}: expected shape \({num_envs},.*, with one row per env"):
        pool.step(np.zeros((num_envs, 1), np.float32))


def test_info_that_has_lost_its_rows_is_named(make_pool: Callable[..., Pool]) -> None:
    class Averaged(Swing):
        def report(self, d: Any) -> None:
            d.info["height"] = d.site_xpos[:, 0, 2].mean()

    with pytest.raises(EnvResetError, match=r"Averaged.info\['height'\]: expected shape \(3,\).* got \(\)"):
        make_pool(Averaged, 3).reset()


def test_plain_numbers_are_for_all_envs(make_pool: Callable[..., Pool]) -> None:
    class Plain(Swing):
        def reward(self, d: Any) -> Any:
            d.info["work"] = 2
            return 1.5

        def terminated(self, d: Any) -> Any:
            return True

    pool = make_pool(Plain, 3)
    pool.reset(seed=1)
    batch = pool.step(np.zeros((3, 1), np.float32))
    assert (batch.reward.tolist(), batch.terminated.tolist()) == ([1.5] * 3, [True] * 3)
    assert batch.fields["work"].tolist() == [2.0] * 3


@pytest.mark.parametrize("stack", [1, 3])
def test_a_snapshot_is_exact(stack: int, make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Weighted, 3, env_kwargs={"frame_stack": stack})
    rng = np.random.default_rng(3)
    actions = rng.uniform(-2, 2, (30, 3, 1)).astype(np.float32)
    pool.reset(seed=1)
    for action in actions[:5]:
        pool.step(action)
    kept = pool.snapshot()

    def play() -> list[Any]:
        batches = [pool.step(action) for action in actions]
        return [(b.obs, b.reward, b.elapsed_step, b.fields["work"]) for b in batches]

    once = play()
    pool.restore(kept)
    for first, second in zip(once, play(), strict=True):
        for one, other in zip(first, second, strict=True):
            np.testing.assert_array_equal(one, other)


def test_state_can_be_read_and_set(pool: Pool) -> None:
    pool.reset(seed=1)
    pool.set_attr("qvel", [np.full(7, float(i)) for i in range(3)])
    assert [qvel[0] for qvel in pool.get_attr("qvel")] == [0.0, 1.0, 2.0]
    pool.call("set_state", np.r_[0.5, 2, 0, 1, 1, 0, 0, 0], np.zeros(7), env_id=[1])
    (data,) = pool.get_attr("data", [1])
    assert data.qpos[0] == 0.5
    np.testing.assert_allclose(data.site_xpos[0], (-np.sin(0.5), 0, -np.cos(0.5)), atol=1e-12)
    assert pool.get_attr("limit") == (2.0,) * 3
    assert pool.get_attr("np_random_seed") == (1, 2, 3)
    with pytest.raises(EnvCallError, match="not part of the state"):
        pool.set_attr("site_xpos", 0.0)


@pytest.mark.parametrize("engine", ["native", "serial"])
def test_every_env_tells_its_spaces(engine: str, make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Swing, 2, engine=engine, env_kwargs={"frame_stack": 2})
    pool.reset(seed=1)
    assert pool.get_attr("observation_space") == (pool.spec.observation.space,) * 2
    assert pool.get_attr("action_space") == (pool.spec.action.space,) * 2
    assert pool.get_attr("metadata") == (pool.spec.metadata,) * 2
    assert pool.get_attr("spec") == (None, None)


@pytest.mark.parametrize("engine", ["native", "serial", "thread"])
def test_every_engine_sets_the_state_of_the_simulation(engine: str, make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Swing, 2, engine=engine)
    pool.reset(seed=1)
    pool.set_attr("qvel", np.full(7, 50.0), env_id=[1])
    assert np.abs(pool.step(np.zeros((2, 1), np.float32)).obs[:, 1]).round(-1).tolist() == [0.0, 50.0]
    with pytest.raises(MissingAttribute, match="'nonsense' is not part of the state"):
        pool.set_attr("nonsense", 1.0)


def test_a_simulation_that_was_moved_goes_on_from_there(pool: Pool) -> None:
    pool.reset(seed=1)
    pool.set_attr("qpos", [np.r_[1.0, 2, 0, 1, 1, 0, 0, 0]] * 3)
    pool.set_attr("qvel", [np.zeros(7)] * 3)
    work = pool.step(np.ones((3, 1), np.float32)).fields["work"]
    assert (np.abs(work) < 0.1).all(), "the way there was not its own"


def test_what_an_author_raises_is_told_with_its_place(make_pool: Callable[..., Pool]) -> None:
    class Broken(Swing):
        def reward(self, d: Any) -> Any:
            raise ZeroDivisionError("no reward today")

    pool = make_pool(Broken, 2)
    pool.reset(seed=1)
    with pytest.raises(EnvStepError, match="no reward today") as caught:
        pool.step(np.zeros((2, 1), np.float32))
    assert "in reward" in "".join(traceback.format_exception(caught.value))


def test_one_start_that_fails_is_one_env_that_fails(make_pool: Callable[..., Pool]) -> None:
    class Moody(Swing):
        def start(self, rng: np.random.Generator) -> Any:
            if rng.integers(0, 3) == 1:
                raise ValueError("not today")
            return super().start(rng)

    pool = make_pool(Moody, 8)
    with pytest.raises(EnvResetError, match="not today") as caught:
        pool.reset(seed=1)
    assert caught.value.where.env_ids == (0,)
    assert any("env 5" in note for note in caught.value.__notes__)
    assert pool.recv().env_id.tolist() == [1, 2, 3, 4, 6, 7]


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e11])
@pytest.mark.parametrize("place", [0, 1])
def test_a_start_from_which_nothing_can_be_simulated_is_an_error_of_its_env(
    number: float, place: int, make_pool: Callable[..., Pool]
) -> None:
    class Lost(Swing):
        def start(self, rng: np.random.Generator) -> Any:
            state = [self.qpos0.copy(), self.qvel0.copy()]
            if rng.integers(0, 3) == 1:
                state[place][0] = number
            return tuple(state)

    pool = make_pool(Lost, 8)
    with pytest.raises(EnvResetError, match=r"Lost.start: not a state of a simulation") as caught:
        pool.reset(seed=1)
    assert caught.value.where.env_ids == (0,)
    assert pool.recv().env_id.tolist() == [1, 2, 3, 4, 6, 7]


def test_drawing(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Swing, 2, env_kwargs={"render_mode": "rgb_array", "width": 64, "height": 48})
    pool.reset(seed=1)
    with contextlib.suppress(EnvCallError):
        (frame,) = pool.render([1])
        assert (frame.shape, frame.dtype) == ((48, 64, 3), np.uint8)
        assert frame.std() > 0
        return
    with pytest.raises(EnvCallError, match="MUJOCO_GL=egl") as caught:
        pool.render([1])
    assert isinstance(caught.value.__cause__, BackendUnavailable)
    pytest.skip("no way to draw here")


def test_drawing_is_to_be_asked_for(pool: Pool) -> None:
    pool.reset(seed=1)
    with pytest.raises(EnvCallError, match="make it with render_mode='rgb_array'"):
        pool.render([0])


def test_a_camera_that_is_not_there() -> None:
    from shoal.envs.mujoco.drawing import Camera

    model = mujoco.MjModel.from_xml_string(MODEL)
    with pytest.raises(ArgumentError, match="no camera 'above'"):
        Camera(camera_name="above").of(model)
    with pytest.raises(ArgumentError, match="both given"):
        Camera(camera_name="above", camera_id=1).of(model)
    free = Camera(config={"distance": 3.0, "lookat": np.array([1.0, 2.0, 3.0])}).of(model)
    assert (free.distance, free.lookat.tolist()) == (3.0, [1.0, 2.0, 3.0])
