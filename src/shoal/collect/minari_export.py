"""A dataset as a Minari dataset: episodes instead of rows, where Minari and what builds on it can find them."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.collect.formats import disk_errors
from shoal.errors import ArgumentError, BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.collect.columns import Columns
    from shoal.collect.dataset import Dataset
    from shoal.spec import EnvSpec, SpaceTree

_NAME = re.compile(r"[-\w]+-v\d+")
_PLACE = "MINARI_DATASETS_PATH"


def check_minari(folder: Path) -> None:
    """Raise if no Minari dataset can be written to a folder with this name, before anything is collected."""
    if not _NAME.fullmatch(folder.name):
        raise ArgumentError(f"{folder}: Minari wants a name that ends with a version, such as cartpole-v0")
    _minari()


def check_spaces(spec: EnvSpec) -> None:
    """Raise if Minari cannot store the observations or actions of such envs, before anything is collected."""
    _minari()
    from minari.serialization import serialize_space

    for what, tree in (("observation", spec.observation), ("action", spec.action)):
        try:
            serialize_space(tree.space)
        except NotImplementedError as error:
            raise ArgumentError(f"{spec.id}: Minari cannot keep its {what} space {tree.space}") from error


def to_minari(dataset: Dataset, folder: str | os.PathLike[str], spec: EnvSpec) -> None:
    """Write a dataset as a Minari dataset called ``folder``, in the folder above it.

    An episode that the end of its part cuts off is marked as truncated, as Minari itself does.

    Args:
        dataset: What to write.
        folder: Where to. With ``MINARI_DATASETS_PATH`` set to the folder above, ``minari.load_dataset(name)`` finds it.
        spec: The spec of the pool that the data came from: ``pool.spec``.

    Raises:
        ArgumentError: If Minari does not allow the name, or cannot store the env's spaces.
        BackendUnavailable: If Minari is not installed.
    """
    path = Path(folder)
    check_minari(path)
    check_spaces(spec)
    draft = path.parent / f".{path.name}.minari"
    with disk_errors(path):
        shutil.rmtree(draft, ignore_errors=True)  # left by a run that was killed
        draft.mkdir(parents=True)
        path.mkdir(exist_ok=True)
        try:
            _create(path.name, draft, dataset, spec)
            (draft / path.name / "data").replace(path / "data")
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _create(name: str, place: Path, dataset: Dataset, spec: EnvSpec) -> None:
    config = dataset.config
    with _datasets_in(place), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari asks for an author, and where the code is
        _minari().create_dataset_from_buffers(
            name,
            _episodes(dataset, spec),
            env=spec.registered,
            observation_space=spec.observation.space,
            action_space=spec.action.space,
            algorithm_name=config.policy,
            description=f"{config.env} with seed {config.seed}, collected by shoal {config.shoal}",
            data_format="hdf5" if _has_h5py() else "arrow",
            jpeg_encoding=False,  # exactly what was observed, not something like it
        )


def _episodes(dataset: Dataset, spec: EnvSpec) -> Iterator[Any]:
    """The episodes, part by part: none goes on from one part to the next."""
    for rows in dataset:
        order = np.lexsort((rows["step"], rows["episode"], rows["env_id"]))
        ends = np.flatnonzero(np.diff(rows["env_id"][order]) | np.diff(rows["episode"][order])) + 1
        for taken in np.split(order, ends):
            yield _episode(rows, taken, spec)


def _episode(rows: Columns, taken: np.ndarray[Any, Any], spec: EnvSpec) -> Any:
    truncated = rows["truncated"][taken]
    if not rows["terminated"][taken[-1]]:
        truncated[-1] = True
    observations = [
        np.concatenate([before[taken], after[taken[-1:]]])
        for before, after in zip(_leaves(rows, "obs"), _leaves(rows, "next_obs"), strict=True)
    ]
    return _minari().data_collector.EpisodeBuffer(
        observations=_nested(spec.observation, observations),
        actions=_nested(spec.action, [leaf[taken] for leaf in _leaves(rows, "action")]),
        rewards=rows["reward"][taken],
        terminations=rows["terminated"][taken],
        truncations=truncated,
    )


def _leaves(rows: Columns, prefix: str) -> list[np.ndarray[Any, Any]]:
    return [values for name, values in rows.items() if name == prefix or name.startswith(f"{prefix}.")]


def _nested(tree: SpaceTree, leaves: list[np.ndarray[Any, Any]]) -> Any:
    # Minari takes a column of texts as a list.
    return tree.unflatten([leaf.tolist() if leaf.dtype == object else leaf for leaf in leaves])


@contextmanager
def _datasets_in(place: Path) -> Iterator[None]:
    """Have Minari keep its datasets in a folder; only an environment variable can tell it where."""
    before = os.environ.get(_PLACE)
    # Absolute, because Minari puts a relative folder before paths that begin with it already.
    os.environ[_PLACE] = str(place.absolute())
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PLACE]
        else:
            os.environ[_PLACE] = before


def _minari() -> Any:
    try:
        import minari
        import minari.data_collector
    except ImportError as error:
        raise BackendUnavailable(f"Minari datasets need minari: pip install 'shoal[minari]' ({error})") from error
    return minari


def _has_h5py() -> bool:
    try:
        import h5py  # noqa: F401
    except ImportError:
        return False
    return True
