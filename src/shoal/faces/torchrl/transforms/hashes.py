"""Hash: numbers that are equal when the entries they stand for are."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase, is_non_tensor

from shoal.errors import ArgumentError
from shoal.faces.torchrl.specs import Composite, NonTensor, Unbounded
from shoal.faces.torchrl.transforms.base import MissingEntry
from shoal.faces.torchrl.transforms.keyed import KeyTransform

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.faces.torchrl.env.keys import NestedKey
    from shoal.faces.torchrl.transforms.base import Keys


class Hash(KeyTransform):
    """Writes the hashes of entries, one per row.

    Args:
        in_keys: The entries: tensors or objects.
        out_keys: Where the hashes are written.
        in_keys_inv: Entries that the env reads, and of which callers write the hashes.
        out_keys_inv: Where callers write them.
        hash_fn: Maps an entry (and the seed, if any) to a tensor or a number; by default, to the 32 bytes of SHA-256.
        seed: Passed to ``hash_fn``, to get different hashes.
        use_raw_nontensor: Whether ``hash_fn`` gets objects wrapped, as TensorDicts hold them, rather than bare.
        repertoire: Where the input of every hash is kept, which it takes to get from a hash back to its input.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, Hash
        >>> env = GymEnv("CartPole-v1").append_transform(Hash(["observation"], ["key"]))
        >>> env.reset()["key"].shape
        torch.Size([32])
    """

    enable_inv_on_reset = True

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        *,
        hash_fn: Callable[..., Any] | None = None,
        seed: Any = None,
        use_raw_nontensor: bool = False,
        repertoire: dict[tuple[int, ...], Any] | None = None,
    ) -> None:
        super().__init__(in_keys=in_keys, out_keys=out_keys, in_keys_inv=in_keys_inv, out_keys_inv=out_keys_inv)
        if self.in_keys_inv and repertoire is None:
            repertoire = {}
        self.hash_fn: Any = self.reproducible_hash if hash_fn is None else hash_fn
        self.seed = seed
        self.use_raw_nontensor = use_raw_nontensor
        self.repertoire = repertoire

    @classmethod
    def reproducible_hash(cls, input: Any, seed: Any = None) -> torch.Tensor:
        """The SHA-256 of a text, of the dtype, shape and bytes of a tensor, or of the printed form of anything else.

        Returns:
            32 bytes, the same in every process.
        """
        if isinstance(input, torch.Tensor):
            array = input.detach().cpu().contiguous().numpy()
            told = f"{array.dtype.str}{array.shape}".encode() + array.tobytes()
        else:
            told = input if isinstance(input, bytes) else str(input).encode()
        digest = hashlib.sha256((b"" if seed is None else str(seed).encode()) + told).digest()
        return torch.frombuffer(bytearray(digest), dtype=torch.uint8)

    @classmethod
    def hash_to_repertoire_key(cls, hash_tensor: torch.Tensor | int) -> tuple[int, ...]:
        """A hash as a key of the repertoire."""
        return tuple(torch.as_tensor(hash_tensor).reshape(-1).tolist())

    def get_input_from_hash(self, hash_tensor: torch.Tensor) -> Any:
        """The input that a hash was made from.

        Raises:
            MissingEntry: If it is not known.
        """
        if self.repertoire is None:
            raise ArgumentError("Hash: the way back from a hash needs a repertoire")
        key = self.hash_to_repertoire_key(hash_tensor)
        if key not in self.repertoire:
            raise MissingEntry("Hash: the input of this hash is not known: it was not made by this transform")
        return self.repertoire[key]

    # -- data ---------------------------------------------------------------------------------------------------------

    def call_hash_fn(self, value: Any) -> torch.Tensor:
        """The hash of one entry."""
        raw = value if self.use_raw_nontensor or not is_non_tensor(value) else value.data
        made = torch.as_tensor(self.hash_fn(raw) if self.seed is None else self.hash_fn(raw, self.seed))
        if self.repertoire is not None:
            self.repertoire[self.hash_to_repertoire_key(made)] = raw
        return made

    def _rewrite(self, td: TensorDictBase, sources: list[NestedKey], targets: list[NestedKey], change: Any) -> None:
        for source, target in zip(sources, targets, strict=True):
            value = td.get(source, None)
            if value is None and not self.missing_tolerance:
                raise self._missing(source, td)
            if value is not None:
                td.set(target, self._each_row(value, td.batch_size, change))

    def _each_row(self, value: Any, batch_size: torch.Size, change: Any) -> Any:
        if not batch_size:
            return change(value)
        rows = [self._each_row(row, batch_size[1:], change) for row in value.unbind(0)]
        device = value.device
        return torch.stack(rows) if isinstance(rows[0], torch.Tensor) else _stack_objects(rows, device)

    def _apply_transform(self, value: Any) -> torch.Tensor:
        made = self.call_hash_fn(value)
        return made if getattr(value, "device", None) is None else made.to(value.device)

    def _inv_apply_transform(self, value: Any) -> Any:
        return self.get_input_from_hash(value)

    # -- specs --------------------------------------------------------------------------------------------------------

    def _change_outputs(self, spec: Composite) -> Composite:
        size = spec.shape
        for source, target in zip(self.in_keys, self.out_keys, strict=True):
            if source in spec:
                leaf = spec[source]
                made = self._example_hash(leaf, len(size))
                spec[target] = Unbounded((*size, *made.shape), dtype=made.dtype, device=leaf.device)
        return spec

    def _example_hash(self, leaf: Any, lead: int) -> torch.Tensor:
        example = leaf.example_data if isinstance(leaf, NonTensor) else leaf.zero()
        if not isinstance(leaf, NonTensor):
            for _ in range(lead):
                example = example[0]
        return torch.as_tensor(self.hash_fn(example) if self.seed is None else self.hash_fn(example, self.seed))

    def _change_inputs(self, spec: Composite) -> Composite:
        for env_key, caller_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            if env_key in spec:
                made = self._example_hash(spec[env_key], len(spec.shape))
                device = spec[env_key].device
                del spec[env_key]
                spec[caller_key] = Unbounded((*spec.shape, *made.shape), dtype=made.dtype, device=device)
        return spec


def _stack_objects(rows: list[Any], device: torch.device | None) -> Any:
    from tensordict import NonTensorData, NonTensorStack

    return NonTensorStack(*(NonTensorData(row, device=device) for row in rows))
