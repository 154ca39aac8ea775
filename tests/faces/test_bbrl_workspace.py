"""BBRL's dialect: the workspace, its transitions and the replay buffer."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from shoal.errors import ShoalError, UnknownVariable, WorkspaceError  # noqa: E402
from shoal.faces.bbrl import Agent, ReplayBuffer, Workspace  # noqa: E402
from shoal.faces.bbrl.workspace import _SplitSharedWorkspace  # noqa: E402


def counted(times: int = 4, columns: int = 2) -> Workspace:
    """x = 10 t + column, and no end of an episode."""
    workspace = Workspace()
    for t in range(times):
        workspace.set("x", t, torch.arange(columns) + 10 * t)
    workspace.set_full("env/done", torch.zeros(times, columns, dtype=torch.bool))
    return workspace


class Model:
    """What a workspace should be, as dicts of dicts of lists."""

    def __init__(self) -> None:
        self.columns: dict[str, list[list[int]]] = {}

    def set(self, name: str, t: int, value: list[int]) -> None:
        column = self.columns.setdefault(name, [])
        while len(column) <= t:
            column.append([0] * len(value))
        column[t] = list(value)

    def copy_n_last_steps(self, n: int) -> None:
        for column in self.columns.values():
            column[:n] = column[len(column) - n :]


VALUE = st.lists(st.integers(-9, 9), min_size=2, max_size=2)
SET = st.tuples(st.just("set"), st.sampled_from("ab"), st.integers(0, 12), VALUE, st.booleans())
TAIL = st.tuples(st.just("tail"), st.integers(1, 4))
DETACH = st.tuples(st.just("detach"))
FULL = st.tuples(st.just("full"), st.sampled_from("ab"), st.lists(VALUE, min_size=1, max_size=5))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(SET, SET, SET, TAIL, DETACH, FULL), max_size=20))
def test_any_sequence_of_writes_gives_what_a_model_of_lists_gives(operations: list[tuple]) -> None:
    workspace, model = Workspace(), Model()
    for operation in operations:
        match operation:
            case ("set", name, t, value, with_grad):
                workspace.set(name, t, torch.tensor(value, dtype=torch.float, requires_grad=with_grad))
                model.set(name, t, value)
            case ("full", name, values):
                workspace.set_full(name, torch.tensor(values, dtype=torch.float))
                model.columns[name] = [list(value) for value in values]
            case ("detach",):
                workspace.zero_grad()
                assert not any(workspace[name].requires_grad for name in workspace)
            case ("tail", n):
                if len({len(column) for column in model.columns.values()}) == 1 and n <= len(
                    next(iter(model.columns.values()))
                ):
                    workspace.copy_n_last_steps(n)
                    model.copy_n_last_steps(n)
    assert {name: workspace[name].tolist() for name in workspace} == model.columns
    assert list(workspace.keys()) == list(model.columns)
    for name, column in model.columns.items():
        assert [workspace.get(name, t).tolist() for t in range(len(column))] == column
    assert [full.tolist() for full in workspace[tuple(workspace)]] == list(model.columns.values())


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 7), st.integers(1, 4), st.integers(0, 2**31), st.booleans())
def test_transitions_are_those_of_a_loop(times: int, columns: int, seed: int, keep_all: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    done = torch.rand(times, columns, generator=generator) < 0.3
    x = torch.rand(times, columns, 3, generator=generator)
    workspace = Workspace()
    workspace.set_full("env/done", done)
    workspace.set_full("x", x)
    expected = [
        (x[t, k], x[t + 1, k], done[t, k], done[t + 1, k])
        for t in range(times - 1)
        for k in range(columns)
        if keep_all or not done[t, k]
    ]
    found = workspace.get_transitions(no_final_state=keep_all)
    assert found["x"].shape == (2, len(expected), 3)
    for n, (before, after, done_before, done_after) in enumerate(expected):
        assert torch.equal(found["x"][0, n], before)
        assert torch.equal(found["x"][1, n], after)
        assert found["env/done"][:, n].tolist() == [bool(done_before), bool(done_after)]


def test_transitions_by_another_flag_and_by_the_other_name() -> None:
    workspace = counted()
    workspace.set_full("cut", torch.tensor([[0, 0], [1, 0], [0, 0], [0, 0]]).bool())
    assert workspace.get_transition(filter_key="cut").batch_size() == 5
    with pytest.raises(WorkspaceError, match="'nope'"):
        workspace.get_transitions(filter_key="nope")


@pytest.mark.parametrize(("shape", "message"), [((4, 1), "different batch sizes"), ((4, 2, 3), "a flag per time")])
def test_transitions_need_a_flag_for_each_column(shape: tuple[int, ...], message: str) -> None:
    workspace = counted(4)
    workspace.set_full("stop", torch.zeros(shape, dtype=torch.bool))
    with pytest.raises(WorkspaceError, match=message):
        workspace.get_transitions(filter_key="stop")


def test_several_variables_are_read_one_after_the_other() -> None:
    workspace = counted(2, 1)
    several = workspace["env/done", "x"]
    assert next(several).tolist() == [[False], [False]]
    assert [full.tolist() for full in several] == [[[0], [10]]]
    with pytest.raises(UnknownVariable, match="'nope'"):
        workspace["x", "nope"]


def test_a_printed_workspace_tells_the_sizes_of_all_variables() -> None:
    workspace = counted(4, 2)
    workspace.set("y", 0, torch.zeros(3, 5))
    assert str(workspace).splitlines() == [
        "Workspace:",
        "  x: time_size = 4, batch_size = 2, shape = (), torch.int64, cpu",
        "  env/done: time_size = 4, batch_size = 2, shape = (), torch.bool, cpu",
        "  y: time_size = 1, batch_size = 3, shape = (5,), torch.float32, cpu",
    ]


def test_errors_are_assertions_and_shoals_own() -> None:
    workspace = counted()
    for bad in (
        lambda: workspace.get("nope", 0),
        lambda: workspace.get("x", 4),
        lambda: workspace.set("x", -1, torch.zeros(2, dtype=torch.long)),
        lambda: workspace.set("x", 0, 3.0),
        lambda: workspace.set("x", 0, torch.zeros(3, dtype=torch.long)),
        lambda: workspace.set_full("x", torch.zeros(4, 2)),
        lambda: workspace.copy_n_last_steps(5),
        lambda: workspace.sample_subworkspace(1, 1, 5),
        lambda: workspace.select_subtime(torch.tensor([0, 3]), 2),
        lambda: Workspace().select_batch_n(1),
    ):
        with pytest.raises(AssertionError) as caught:
            bad()
        assert isinstance(caught.value, ShoalError)


@pytest.mark.parametrize("with_grad", [False, True])
def test_negative_times_count_from_the_end_of_what_was_written(with_grad: bool) -> None:
    workspace = Workspace()
    for t in range(4):
        workspace.set("x", t, torch.tensor([10.0 * t, 10.0 * t + 1], requires_grad=with_grad))
    assert [workspace.get("x", t).tolist() for t in (-1, -4)] == [[30, 31], [0, 1]]

    class Look(Agent):
        def forward(self) -> None:
            seen.append(self.get(("x", -1)).tolist())

    seen: list[Any] = []
    Look()(workspace)
    assert seen == [[30, 31]]
    workspace.restart()
    workspace.set("x", 0, torch.tensor([7.0, 8.0]))
    assert workspace.get("x", -1).tolist() == [7, 8], "and of this run"


@pytest.mark.parametrize("t", [4, -5])
def test_a_time_that_is_not_there_is_told_with_the_name_and_the_times_that_are(t: int) -> None:
    shared = counted()._convert_to_shared_workspace()
    part, value = _SplitSharedWorkspace(shared, (0, 1)), torch.zeros(1, dtype=torch.long)
    for bad in (lambda: counted().get("x", t), lambda: part.get("x", t), lambda: part.set("x", t, value)):
        with pytest.raises(WorkspaceError, match=rf"^x: there is no time {t}; it has times 0 to 3"):
            bad()
    with pytest.raises(WorkspaceError, match=r"^x: there is no time 4; it has times 0 to 3; a shared workspace"):
        shared.set("x", 4, torch.zeros(2, dtype=torch.long))


def test_a_whole_variable_is_replaced_by_one_of_another_size_and_type() -> None:
    workspace = Workspace()
    workspace.set_full("x", torch.zeros(3, 2))
    workspace.copy_n_last_steps(1)
    workspace.set_full("x", torch.ones(4, 5, 1, dtype=torch.long))
    assert (workspace["x"].shape, workspace["x"].dtype) == ((4, 5, 1), torch.long)
    copy = Workspace(workspace)
    copy.set_full("x", torch.zeros(1, 1))
    assert copy["x"].tolist() == [[0.0]]
    workspace.set("x", 0, torch.zeros(5, 1, dtype=torch.long))
    with pytest.raises(WorkspaceError, match="the first value was"):
        workspace.set_full("x", torch.zeros(3, 2))


def test_copied_times_may_lead_beyond_the_end() -> None:
    workspace = counted(4, 1)
    workspace.copy_time(0, 4, 2)
    assert workspace["x"][:, 0].tolist() == [0, 10, 20, 30, 0, 10]
    workspace.copy_time(4, 7, 1, ["x"])
    assert workspace["x"][:, 0].tolist() == [0, 10, 20, 30, 0, 10, 0, 0]
    assert len(workspace["env/done"]) == 6
    for bad in (lambda: workspace.copy_time(7, 0, 2), lambda: workspace.copy_time(-1, 0, 1)):
        with pytest.raises(WorkspaceError, match=r"^x: .* do not fit into 8 times"):
            bad()
    with pytest.raises(WorkspaceError, match=r"^x: 2 from 0 to 4 do not fit into 4 times"):
        counted()._convert_to_shared_workspace().copy_time(0, 4, 2)


def test_what_is_read_and_written_belongs_to_its_holder() -> None:
    workspace, value = Workspace(), torch.zeros(2)
    workspace.set("x", 0, value)
    full = torch.zeros(1, 2)
    workspace.set_full("y", full)
    value[0] = full[0, 0] = 5
    workspace["x"][0, 0] = workspace["y"][0, 0] = 6
    workspace.get("x", 0)[1] = 7
    held = workspace["x"]
    workspace.set("x", 0, torch.ones(2))
    assert workspace["x"].tolist() == [[1, 1]]
    assert workspace["y"].tolist() == held.tolist() == [[0, 0]]


def test_gradients_survive_a_run_and_its_continuation() -> None:
    """A policy is trained on a workspace that its envs go on writing: what backward needs must not be overwritten."""
    net, workspace = torch.nn.Linear(2, 2), Workspace()
    for epoch in range(2):
        for t in range(epoch, 3):
            workspace.set("obs", t, torch.full((1, 2), float(t + epoch)))
            workspace.set("out", t, net(workspace.get("obs", t)).exp())
        expected = torch.stack([net(workspace.get("obs", t)).exp() for t in range(epoch, 3)]).sum()
        found = workspace["out"][epoch:].sum()
        assert torch.allclose(*[torch.autograd.grad(each, net.weight)[0] for each in (expected, found)])
        workspace.zero_grad()
        workspace.copy_n_last_steps(1)
    assert not workspace["out"].requires_grad


def test_a_new_run_forgets_the_rest_of_a_longer_one() -> None:
    workspace = counted(4)
    workspace.restart()
    workspace.set("x", 0, torch.tensor([7, 7]))
    workspace.set("x", 1, torch.tensor([8, 8]))
    assert workspace["x"].tolist() == [[7, 7], [8, 8]]
    assert len(workspace["env/done"]) == 4, "what is not written again stays"


def test_a_plan_that_is_changed_in_one_place_is_kept_in_the_others() -> None:
    workspace = Workspace()
    workspace.set_full("action", torch.zeros(5, 1))
    for copied in (workspace, Workspace(workspace)):
        for value in (7.0, 8.0):
            copied.restart()
            copied.set("action", 0, torch.tensor([value]))
            assert copied["action"][:, 0].tolist() == [value, 0, 0, 0, 0]
        copied.set("action", 5, torch.ones(1))
        copied.restart()
        copied.set("action", 0, torch.ones(1))
        assert len(copied["action"]) == 1, "a run had made it longer"


def test_a_new_run_clears_what_a_longer_one_has_left_in_shared_memory() -> None:
    shared = counted(4)._convert_to_shared_workspace()
    shared.restart()
    shared.set("x", 0, torch.tensor([7, 7]))
    assert shared["x"].tolist() == [[7, 7], [0, 0], [0, 0], [0, 0]]
    shared.set_full("x", torch.ones(4, 2, dtype=torch.long))
    shared.restart()
    shared.set("x", 1, torch.tensor([7, 7]))
    assert shared["x"][:, 0].tolist() == [1, 7, 1, 1], "a plan stays"


def test_where_all_columns_are_wanted_they_stay_in_order() -> None:
    workspace = counted(4, 5)
    for _ in range(10):
        assert workspace.sample_subworkspace(1, 5, 4)["x"].tolist() == workspace["x"].tolist()


def test_more_variables_and_unknown_names_do_no_harm() -> None:
    workspace = counted(4, 1)
    workspace.set_full("more", torch.zeros(4, 1))
    assert list(Workspace.cat_batch([counted(4, 1), workspace])) == ["x", "env/done"]
    with pytest.raises(WorkspaceError, match="cat_batch"):
        Workspace.cat_batch([workspace, counted(4, 1)])
    workspace.copy_time(2, 0, 1, var_names=["x", "unknown"])
    assert workspace["x"][:, 0].tolist() == [20, 10, 20, 30]
    workspace.copy_n_last_steps(1, ["x", "unknown"])
    assert workspace["x"][0].tolist() == [30]


def test_sizes_columns_windows() -> None:
    assert Workspace().time_size() is None
    assert Workspace().batch_size() is None
    workspace = counted()
    workspace.set("y", 0, torch.zeros(3))
    with pytest.raises(AssertionError):
        workspace.time_size()
    with pytest.raises(AssertionError):
        workspace.batch_size()
    workspace.remove_variable("y")
    assert workspace.to("cpu")["x"].tolist() == workspace.contiguous()["x"].tolist()
    assert workspace.select_batch([1])["x"].tolist() == [[1], [11], [21], [31]]
    starts = {int(counted(4, 1).sample_subworkspace(1, 1, 2)["x"][0, 0]) for _ in range(200)}
    assert starts == {0, 10, 20}, "every window, the last one included"
    workspace.clear()
    assert list(workspace) == []


def test_windows_need_no_more_than_the_times_they_cover() -> None:
    workspace = counted(4)
    workspace.set("y", 2, torch.ones(2))
    found = workspace.select_subtime(torch.tensor([0, 1]), 2)
    assert (found["x"].tolist(), found["y"].tolist()) == ([[0, 11], [10, 21]], [[0, 0], [0, 1]])
    for starts in ([0, 2], [-1, 0]):
        with pytest.raises(WorkspaceError, match="do not lie in 3 x 2"):
            workspace.select_subtime(torch.tensor(starts), 2)
    assert counted(4).sample_subworkspace(1, 0, 2)["x"].shape == (2, 0)


def test_columns_are_chosen_by_index_from_either_end_or_by_mask() -> None:
    workspace = counted(2, 3)
    for chosen, expected in (([2, 0, 2], [2, 0, 2]), ([-1], [2]), ([True, False, True], [0, 2]), ([], [])):
        found = workspace.select_batch(torch.tensor(chosen))["x"]
        assert found.tolist() == [expected, [10 + column for column in expected]]


def test_a_window_has_each_column_once_at_most() -> None:
    workspace = counted(6, 4)
    for seed in range(10):
        torch.manual_seed(seed)
        columns = workspace.sample_subworkspace(2, 4, 3)["x"] % 10
        assert columns.shape == (3, 8)
        assert (columns == columns[0]).all()
        assert columns[0].view(2, 4).sort(1).values.tolist() == [[0, 1, 2, 3]] * 2
        assert len(set((workspace.sample_subworkspace(1, 3, 2)["x"][0] % 10).tolist())) == 3
    assert workspace.sample_subworkspace(1, 9, 2).batch_size() == 4


@pytest.mark.parametrize("is_shared", [False, True])
def test_some_columns_can_be_read_and_written_alone(is_shared: bool) -> None:
    workspace = counted(2, 3)
    if is_shared:
        workspace = workspace._convert_to_shared_workspace()
    assert workspace.get("x", 1, (1, 3)).tolist() == [11, 12]
    assert workspace.get_full("x", (0, 1)).tolist() == [[0], [10]]
    assert workspace.get_time_truncated("x", 1, 9, (2, 3)).tolist() == [[12]]
    workspace.set("x", 0, torch.tensor([7]), (2, 3))
    workspace.set_full("x", torch.tensor([[8], [9]]), (0, 1))
    assert workspace["x"].tolist() == [[8, 1, 7], [9, 11, 12]]


def test_a_variable_that_is_not_there_is_an_assertion_and_a_key() -> None:
    workspace = counted()
    for ask in (workspace.remove_variable, workspace.clear, workspace.get_full):
        for kind in (AssertionError, KeyError, ShoalError):
            with pytest.raises(kind, match="has no variable 'y'; it has"):
                ask("y")


def test_a_share_of_columns_says_which_they_are() -> None:
    assert _SplitSharedWorkspace(counted()._convert_to_shared_workspace(), (1, 2)).batch_dims == (1, 2)


def test_shared_workspaces_keep_their_names_and_sizes() -> None:
    shared = counted()._convert_to_shared_workspace(n_repeat=2)
    assert shared.is_shared
    assert shared["x"][1].tolist() == [10, 11, 10, 11]
    shared.set("x", 0, torch.tensor([1, 2, 3, 4]))
    _SplitSharedWorkspace(shared, (2, 4)).set("x", 1, torch.tensor([5, 6]))
    assert shared["x"][:2].tolist() == [[1, 2, 3, 4], [10, 11, 5, 6]]
    for bad in (
        lambda: shared.set("new", 0, torch.zeros(4)),
        lambda: shared.set("x", 4, torch.zeros(4, dtype=torch.long)),
        lambda: shared.set_full("x", torch.zeros(1, 4, dtype=torch.long)),
        shared.clear,
        lambda: shared.clear("x"),
        lambda: shared.remove_variable("x"),
    ):
        with pytest.raises(WorkspaceError):
            bad()
    assert counted()._convert_to_shared_workspace(time_size=7)["x"].shape == (7, 2)


@pytest.mark.parametrize(
    "way", [copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_copy_is_a_workspace_like_any_other(way: Any, is_shared: bool) -> None:
    original = Workspace()
    for t in range(3):
        original.set("x", t, torch.tensor([t, 10 * t]))
    copied = way(original._convert_to_shared_workspace() if is_shared else original)
    copied.set("x", 0, torch.tensor([7, 7]))
    assert copied.get("x", 0).tolist() == [7, 7]
    assert copied["x"].tolist() == [[7, 7], [1, 10], [2, 20]]
    assert original["x"][0].tolist() == [0, 0]
    assert copied.variables["x"].whole().is_shared() is is_shared


def _write_sevens(workspace: Workspace) -> None:
    workspace.set("x", 1, torch.tensor([7, 7]))


@pytest.mark.slow
def test_what_another_process_writes_to_a_shared_workspace_is_seen() -> None:
    workspace = Workspace()
    workspace.set_full("x", torch.zeros(2, 2, dtype=torch.long))
    shared = workspace._convert_to_shared_workspace()
    process = torch.multiprocessing.get_context("spawn").Process(target=_write_sevens, args=(shared,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert shared["x"].tolist() == [[0, 0], [7, 7]]
    assert shared.get("x", 1).tolist() == [7, 7]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.uint16, torch.bool])
def test_values_of_every_type_are_kept(dtype: Any) -> None:
    value = torch.tensor([1, 0]).to(dtype)
    value = (value * 1j).conj() if dtype.is_complex else value
    workspace = Workspace()
    workspace.set("x", 0, value)
    assert workspace["x"].dtype == workspace.get("x", 0).dtype == dtype
    assert torch.equal(workspace.get("x", 0).to(torch.complex64), value.to(torch.complex64))


def test_a_value_that_is_negated_when_it_is_read_is_kept() -> None:
    workspace = Workspace()
    workspace.set("x", 0, torch.tensor([1 + 2j]).conj().imag)
    assert workspace["x"].tolist() == [[-2]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("how", ["by time", "whole", "copied", "shared"])
def test_what_was_begun_under_inference_mode_goes_on_outside(dtype: Any, how: str) -> None:
    workspace = Workspace()
    with torch.inference_mode():
        if how == "whole":
            workspace.set_full("x", torch.ones(2, 2, dtype=dtype))
        else:
            for t in range(2):
                workspace.set("x", t, torch.ones(2, dtype=dtype))
        if how == "copied":
            workspace = copy.deepcopy(workspace)
        if how == "shared":
            workspace = workspace._convert_to_shared_workspace(time_size=12)
    zeros = torch.zeros(2, dtype=dtype)
    workspace.set("x", 1, zeros)
    workspace.set("x", 3, zeros)
    workspace.set("x", 11, zeros)  # beyond the room there was
    workspace.copy_n_last_steps(1)
    weight = torch.ones(2, dtype=dtype, requires_grad=True)
    (workspace["x"] * weight + workspace.get("x", 0)).sum().backward()
    assert weight.grad is not None
    if how != "shared":
        workspace.set("x", 1, weight * 2)
        workspace["x"].sum().backward()
        assert weight.grad.tolist() == [2, 2]
    assert workspace.get("x", 3).tolist() == [0, 0]


def test_values_with_and_without_gradients_from_both_sides_of_inference_mode() -> None:
    workspace, weight = Workspace(), torch.ones(2, requires_grad=True)
    workspace.set("x", 0, weight * 2)
    with torch.inference_mode():
        workspace.set("x", 2, weight * 3)
    workspace.set("x", 3, weight * 4)
    assert workspace["x"][:, 0].tolist() == [2, 0, 3, 4]
    (workspace["x"] * weight).sum().backward()
    workspace.zero_grad()
    workspace.set("x", 0, torch.zeros(2))
    assert workspace["x"][:, 0].tolist() == [0, 0, 3, 4]


def test_a_buffer_that_was_begun_under_inference_mode_goes_on_outside() -> None:
    buffer = ReplayBuffer(5)
    with torch.inference_mode():
        pairs = Workspace()
        pairs.set_full("x", torch.ones(2, 3))
        buffer.put(pairs)
    buffer.put(pairs)
    weight = torch.ones(4, requires_grad=True)
    (buffer.get_shuffled(4)["x"] * weight).sum().backward()
    assert buffer.is_full


def test_columns_of_variables_of_different_widths_are_not_the_same_columns() -> None:
    workspace = Workspace()
    workspace.set("x", 0, torch.zeros(2))
    workspace.set("y", 0, torch.zeros(3))
    with pytest.raises(WorkspaceError, match="different batch sizes"):
        workspace.select_batch([0])


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 6), st.lists(st.integers(0, 9), max_size=6))
def test_the_buffer_holds_the_last_columns(max_size: int, sizes: list[int]) -> None:
    buffer, put = ReplayBuffer(max_size), 0
    for size in sizes:
        pairs = Workspace()
        pairs.set_full("x", torch.stack([torch.arange(put, put + size), torch.arange(put, put + size) + 100]))
        buffer.put(pairs)
        put += size
    assert buffer.size() == min(put, max_size)
    assert buffer.position == put % max_size
    if not put:
        with pytest.raises(RuntimeError):
            buffer.get_shuffled(1)
        return
    assert sorted(buffer.variables["x"][: buffer.size(), 0].tolist()) == list(range(max(0, put - max_size), put))
    drawn = buffer.get_shuffled(64)["x"]
    assert torch.equal(drawn[0] + 100, drawn[1])


def test_a_size_may_be_written_as_configs_write_it() -> None:
    buffer = ReplayBuffer(1e1)
    buffer.put(workspace=counted(2, 3))
    assert (buffer.max_size, buffer.size()) == (10, 3)


def test_a_buffer_prints_its_observations(capsys: pytest.CaptureFixture[str]) -> None:
    buffer = ReplayBuffer(2)
    buffer.put(Workspace._of([("env/env_obs", torch.tensor([[3], [4]]))]))
    buffer.print_obs()
    assert capsys.readouterr().out == "position: 1\ntensor([[3, 4],\n        [0, 0]])\n"


def test_a_buffer_takes_what_it_was_begun_with() -> None:
    buffer = ReplayBuffer(4)
    buffer.put(counted(2))
    for other in (counted(3), Workspace._of([("x", torch.zeros(2, 2))])):
        with pytest.raises(AssertionError, match="put"):
            buffer.put(other)


@pytest.mark.parametrize(
    "other", [torch.zeros(3, 2), torch.zeros(2, 2, 5), torch.zeros(2, 2, dtype=torch.long)], ids=str
)
def test_columns_that_do_not_fit_into_a_buffer_are_the_error_that_torch_makes_of_them(other: Any) -> None:
    buffer = ReplayBuffer(4)
    buffer.put(Workspace._of([("x", torch.zeros(2, 2))]))
    for kind in (RuntimeError, WorkspaceError):
        with pytest.raises(kind, match=r"put: x: the buffer holds \(2,\) torch.float32"):
            buffer.put(Workspace._of([("x", other)]))
    assert buffer.size() == 2


def test_a_variable_that_a_buffer_does_not_know_is_told_by_the_same_class_as_elsewhere() -> None:
    buffer, more = ReplayBuffer(4), counted(2)
    buffer.put(counted(2))
    more.set_full("more", torch.zeros(2, 2))
    for kind in (KeyError, UnknownVariable):
        with pytest.raises(kind, match=r"the buffer holds .* the workspace has \['x', 'env/done', 'more'\]"):
            buffer.put(more)
