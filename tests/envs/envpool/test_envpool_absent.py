"""Without the package: what an error says about it."""

from __future__ import annotations

import sys

import pytest

import shoal
from shoal.envs.envpool.names import family_of
from shoal.errors import ArgumentError, BackendUnavailable


@pytest.fixture
def no_envpool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)


@pytest.mark.usefixtures("no_envpool")
def test_the_extra_is_named() -> None:
    for make in (shoal.make_vec, shoal.make_pool, shoal.make_gymnasium, shoal.make_spec):
        with pytest.raises(BackendUnavailable, match=r"shoal\[envpool\]"):
            make("CartPole-v1", engine="envpool")


@pytest.mark.usefixtures("no_envpool")
@pytest.mark.parametrize(
    "task_id", ["CoinrunEasy-v0", "MetaWorld/Reach-v3", "myoElbowPose1D6MFixed-v0", "TakeCover-v1"]
)
def test_ids_of_envpools_lead_to_its_engine(task_id: str) -> None:
    for make in (shoal.make_vec, shoal.make_gymnasium):
        with pytest.raises(ArgumentError, match="engine='envpool'"):
            make(task_id, num_envs=1)


def test_other_unknown_ids_do_not() -> None:
    assert family_of("Nothing-v0") is family_of("MetaWorld") is None
    with pytest.raises(ArgumentError) as caught:
        shoal.make_vec("Nothing-v0", num_envs=1)
    assert "envpool" not in str(caught.value)
