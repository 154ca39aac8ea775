"""LLMHashingEnv: a text that grows by a token per step, and a hash that tells texts apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from shoal.errors import ArgumentError, TensorEnvError
from shoal.faces.torchrl.env_base import EnvBase
from shoal.faces.torchrl.native.hashing import SipHash
from shoal.faces.torchrl.specs import Categorical, Composite, NonTensor, Unbounded

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensordict import TensorDictBase


class _NoVocabulary(ArgumentError, TypeError):
    """An env of tokens was not told how many tokens there are."""


class LLMHashingEnv(EnvBase):
    """Tokens are appended to a prompt; each text has a hash, which stands for it in tables and trees.

    A reset needs a prompt in its data: tokens under ``observation_key``. A step appends the action. There is no reward,
    and episodes do not end: transforms say what texts are worth.

    Args:
        vocab_size: The number of tokens, that of the tokenizer by default.
        hashing_module: Maps rows of integers to integers.
        observation_key: Where the tokens are.
        text_output: Whether the text itself is written, where there is a tokenizer to decode it.
        tokenizer: Callable on a text or a list of texts, with ``decode``, ``batch_decode`` and ``vocab_size``.
        text_key: Where the text is.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from shoal.faces.torchrl import LLMHashingEnv
        >>> env = LLMHashingEnv(vocab_size=10)
        >>> td = env.reset(TensorDict({"observation": torch.tensor([[1, 2], [3, 4]])}, [2]))
        >>> env.rand_step(td)["next", "observation"].shape
        torch.Size([2, 3])
    """

    batch_locked = False

    def __init__(
        self,
        vocab_size: int | None = None,
        *,
        hashing_module: Callable[[torch.Tensor], torch.Tensor] | None = None,
        observation_key: str = "observation",
        text_output: bool = True,
        tokenizer: Any = None,
        text_key: str = "text",
    ) -> None:
        super().__init__()
        if vocab_size is None:
            if tokenizer is None:
                raise _NoVocabulary("LLMHashingEnv: give a vocab_size, or a tokenizer that has one")
            vocab_size = tokenizer.vocab_size
        self._hash = SipHash() if hashing_module is None else hashing_module
        self._tokenizer = tokenizer
        self.observation_key = observation_key
        self.text_key = text_key if text_output and tokenizer is not None else None
        tokens = {
            observation_key: Categorical(vocab_size, shape=(-1,)),
            "hashing": Unbounded((1,), dtype=torch.int64),
        }
        self.observation_spec = Composite(tokens)
        if self.text_key is not None:
            self.observation_spec[self.text_key] = NonTensor(shape=(), example_data="")
        self.state_spec = Composite(tokens).clone()
        self.action_spec = Categorical(vocab_size, shape=(1,))
        self.full_reward_spec = Composite()

    def make_tensordict(self, input: str | list[str]) -> TensorDictBase:
        """Tokenize texts, and reset the env to them.

        Args:
            input: A text, or a list of texts with equally many tokens.

        Returns:
            What the reset returned, of batch size ``()`` for one text, ``(n,)`` for a list.
        """
        if self._tokenizer is None:
            raise ArgumentError("LLMHashingEnv.make_tensordict: the env was built without a tokenizer")
        tokens = self._tokenizer(input)
        if isinstance(tokens, Mapping) or hasattr(tokens, "input_ids"):
            tokens = tokens["input_ids"]
        size = [len(input)] if isinstance(input, list) else []
        return self.reset(TensorDict({self.observation_key: torch.as_tensor(tokens)}, size))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        tokens = None if tensordict is None else tensordict.get(self.observation_key, None)
        if tensordict is None or tokens is None:
            raise TensorEnvError(
                f"LLMHashingEnv.reset: no tokens under {self.observation_key!r} to begin with: put a prompt there"
            )
        return self._described(tokens, tokens, tensordict.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict.get("action")
        tokens = torch.cat([tensordict.get(self.observation_key), action], -1)
        return self._described(tokens, torch.cat([tensordict.get("hashing"), action], -1), tensordict.batch_size)

    def _described(self, tokens: torch.Tensor, hashed: torch.Tensor, size: torch.Size) -> TensorDictBase:
        described = TensorDict({self.observation_key: tokens, "hashing": self._hash(hashed).unsqueeze(-1)}, size)
        if self.text_key is not None:
            described.set(self.text_key, self._text(tokens))
        return described

    def _text(self, tokens: torch.Tensor) -> NonTensorData | NonTensorStack:
        if tokens.ndim == 1:
            return NonTensorData(self._tokenizer.decode(tokens))
        if tokens.ndim == 2:
            return NonTensorStack(*(NonTensorData(text) for text in self._tokenizer.batch_decode(tokens)))
        return NonTensorStack(*(self._text(row) for row in tokens))

    def _set_seed(self, seed: int | None) -> None:
        """Do nothing: nothing here is random."""
