"""What some robots observe, are paid and report, written to be compiled: the same rows as their methods in numpy give.

In numpy, a step takes some thirty calls, each of which takes a microsecond or more right after the simulator has used
the caches. With few envs, that is as long as the simulation itself.

Every function here is made for the dtype of actions, which is also the precision of their cost, and writes the rows of
some envs after a step. Its parameters that end in ``_at`` are addresses: of array objects (the first five), of other
arrays, and of tables of addresses (``fields`` and ``told``). Sums are taken in the order in which numpy takes them.
"""

from __future__ import annotations

from math import isfinite, sqrt
from typing import Any

import numba
import numpy as np

from shoal.engines.kernel.intrinsics import array_at, data_of

_inlined = numba.njit(error_model="numpy", forceinline=True)


def runner_rows(dtype: np.dtype[Any]) -> Any:
    """For HalfCheetah, Hopper and Walker2d."""
    return _writer(dtype, _judge_runner)


def ant_rows(dtype: np.dtype[Any]) -> Any:
    """For Ant; the fields are the positions of its bodies and, if it pays for contact, the forces on them."""
    return _writer(dtype, _judge_ant)


def _writer(dtype: np.dtype[Any], judge: Any) -> Any:
    number, size = dtype.type, dtype.itemsize

    def write_rows(
        ids_at: Any,
        action_at: Any,
        obs_at: Any,
        reward_at: Any,
        terminated_at: Any,
        count: int,
        qpos_at: Any,
        qvel_at: Any,
        state_bytes: int,
        fields_at: Any,
        tracked_at: Any,
        numbers_at: Any,
        told_at: Any,
        nq: int,
        nv: int,
        nu: int,
        width: int,
    ) -> None:
        numbers = array_at(numbers_at, (4,), np.float64)
        hidden, slowest, fastest, ctrl_weight = int(numbers[0]), numbers[1], numbers[2], number(numbers[3])
        for i in array_at(data_of(ids_at), (count,), np.int32):
            qpos = array_at(_place(qpos_at, i, state_bytes), (nq,), np.float64)
            qvel = array_at(_place(qvel_at, i, state_bytes), (nv,), np.float64)
            action = array_at(_place(data_of(action_at), i, nu * size), (nu,), dtype)
            obs = array_at(_place(data_of(obs_at), i, 8 * width), (width,), np.float64)
            for j in range(hidden, nq):
                obs[j - hidden] = qpos[j]
            for j in range(nv):
                obs[nq - hidden + j] = _clip(qvel[j], slowest, fastest)
            cost = ctrl_weight * _square_sum(action, number(-np.inf), number(np.inf))
            options_at, rest = numbers_at + np.uint64(32), obs[nq - hidden + nv :]
            reward, is_over, told = judge(i, qpos, qvel, cost, tracked_at, fields_at, options_at, rest)
            _write(data_of(reward_at), i, reward)
            array_at(_place(data_of(terminated_at), i, 1), (1,), np.bool_)[0] = is_over
            columns = array_at(told_at, (len(told),), np.uint64)
            for k, value in enumerate(told):
                _write(columns[k], i, value)

    return write_rows


@_inlined
def _judge_runner(
    i: int, qpos: Any, qvel: Any, cost: Any, tracked_at: Any, fields_at: Any, options_at: Any, rest: Any
) -> Any:
    options = array_at(options_at, (13,), np.float64)
    dt, forward_weight, healthy_reward = options[0], options[1], options[2]
    is_fall_paid, ends_with_fall, checks_state, height = options[3], options[4], options[5], options[6]
    z_low, z_high, angle_low, angle_high = options[7], options[8], options[9], options[10]
    low, high = options[11], options[12]
    is_healthy = (z_low < qpos[1] < z_high) and (angle_low < qpos[2] < angle_high)
    if checks_state:
        for number in qpos[2:]:
            is_healthy &= low < number < high
        for number in qvel:
            is_healthy &= low < number < high
    before = array_at(_place(tracked_at, i, 8), (1,), np.float64)
    speed = (qpos[0] - before[0]) / dt
    before[0] = qpos[0]
    forward = forward_weight * speed
    survive = healthy_reward if is_healthy or is_fall_paid else 0.0
    told = (qpos[0], qpos[1] - height, speed, forward, np.float64(-cost), survive)
    return forward + survive - cost, bool(ends_with_fall) and not is_healthy, told


@_inlined
def _judge_ant(
    i: int, qpos: Any, qvel: Any, cost: Any, tracked_at: Any, fields_at: Any, options_at: Any, rest: Any
) -> Any:
    options = array_at(options_at, (14,), np.float64)
    dt, forward_weight, healthy_reward = options[0], options[1], options[2]
    is_fall_paid, ends_with_fall, z_low, z_high = options[3], options[4], options[5], options[6]
    num_bodies, body, reports_body = int(options[7]), int(options[8]), options[9]
    contact_weight, weakest, strongest, first_seen = options[10], options[11], options[12], int(options[13])
    fields = array_at(fields_at, (2,), np.uint64)
    is_healthy = z_low <= qpos[2] <= z_high
    for number in qpos:
        is_healthy &= isfinite(number)
    for number in qvel:
        is_healthy &= isfinite(number)
    before = array_at(_place(tracked_at, i, 16), (2,), np.float64)
    now = array_at(_place(fields[0], i, 24 * num_bodies), (num_bodies, 3), np.float64)[body]
    x_speed, y_speed = (now[0] - before[0]) / dt, (now[1] - before[1]) / dt
    before[0], before[1] = now[0], now[1]
    forward = x_speed * forward_weight
    survive = healthy_reward if is_healthy or is_fall_paid else 0.0
    contact_cost = 0.0
    if fields[1]:
        forces = array_at(_place(fields[1], i, 48 * num_bodies), (6 * num_bodies,), np.float64)
        contact_cost = contact_weight * _square_sum(forces, weakest, strongest)
        for j in range(len(rest)):
            rest[j] = _clip(forces[first_seen + j], weakest, strongest)
    x, y = (now[0], now[1]) if reports_body else (qpos[0], qpos[1])
    position = (x, y, sqrt(x * x + y * y))
    told = (*position, x_speed, y_speed, forward, forward, np.float64(-cost), survive, 0.0 - contact_cost)
    return forward + survive - (cost + contact_cost), bool(ends_with_fall) and not is_healthy, told


@_inlined
def _place(address: Any, i: int, row_bytes: int) -> Any:
    return address + np.uint64(i) * np.uint64(row_bytes)


@_inlined
def _write(column_at: Any, i: int, value: float) -> None:
    array_at(_place(column_at, i, 8), (1,), np.float64)[0] = value


@_inlined
def _clip(number: Any, low: Any, high: Any) -> Any:
    """``number`` within bounds; NaN stays NaN."""
    return low if number < low else high if number > high else number


@_inlined
def _square(row: Any, j: int, low: Any, high: Any) -> Any:
    number = _clip(row[j], low, high)
    return number * number


@_inlined
def _lane(row: Any, first: int, stop: int, low: Any, high: Any) -> Any:
    total = _square(row, first, low, high)
    for j in range(first + 8, stop, 8):
        total += _square(row, j, low, high)
    return total


@_inlined
def _square_sum(row: Any, low: Any, high: Any) -> Any:
    """The sum of the squares of clipped numbers, as numpy adds up to 128 of them.

    That is eight sums side by side, which are added in pairs, and then the numbers that are left.
    """
    whole = len(row) - len(row) % 8
    total = row.dtype.type(0)
    if whole:
        first = _lane(row, 0, whole, low, high) + _lane(row, 1, whole, low, high)
        second = _lane(row, 2, whole, low, high) + _lane(row, 3, whole, low, high)
        third = _lane(row, 4, whole, low, high) + _lane(row, 5, whole, low, high)
        fourth = _lane(row, 6, whole, low, high) + _lane(row, 7, whole, low, high)
        total = (first + second) + (third + fourth)
    for j in range(whole, len(row)):
        total += _square(row, j, low, high)
    return total
