"""LLMHashingEnv and SipHash: texts that grow, and what tells them apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from shoal.faces.torchrl import LLMHashingEnv, SipHash, check_env_specs


class Letters:
    """A tokenizer of small letters."""

    vocab_size = 26

    def __call__(self, text: str | list[str]) -> Any:
        return [self(part) for part in text] if isinstance(text, list) else [ord(letter) - ord("a") for letter in text]

    def decode(self, ids: torch.Tensor) -> str:
        return "".join(chr(ord("a") + i) for i in ids.tolist())

    def batch_decode(self, rows: torch.Tensor) -> list[str]:
        return [self.decode(row) for row in rows]


def prompt(*tokens: Any) -> TensorDict:
    ids = torch.tensor(tokens)
    return TensorDict({"observation": ids}, ids.shape[:-1])


@pytest.mark.parametrize("tokens", [(1, 2), ([1, 2], [3, 4]), ([[1, 2], [3, 4]], [[5, 6], [1, 2]])])
def test_texts_grow_by_the_action(tokens: Any) -> None:
    env = LLMHashingEnv(tokenizer=Letters())
    first = env.reset(prompt(*tokens))
    size = first.batch_size
    check_env_specs(env, tensordict=prompt(*tokens), return_contiguous=False)
    following = env.step(first.set("action", torch.full((*size, 1), 7)))["next"]
    assert torch.equal(following["observation"][..., :-1], first["observation"])
    assert (following["observation"][..., -1] == 7).all()
    assert following["hashing"].shape == (*size, 1)
    assert not following["done"].any()
    assert following.get("reward", None) is None


def test_texts_are_decoded() -> None:
    env = LLMHashingEnv(tokenizer=Letters(), text_key="words", observation_key="ids")
    td = env.make_tensordict(["ab", "cd"])
    assert td.batch_size == (2,)
    assert list(td["words"]) == ["ab", "cd"]
    assert list(env.step(td.set("action", torch.tensor([[2], [3]])))["next", "words"]) == ["abc", "cdd"]
    alone = env.make_tensordict("xyz")
    assert alone.batch_size == ()
    assert alone["words"] == "xyz"
    assert env.state_keys == ["hashing", "ids"]


def test_tokenizers_that_answer_with_a_dict_are_read() -> None:
    class Answers(Letters):
        def __call__(self, text: str | list[str]) -> Any:
            return {"input_ids": Letters()(text)}

    assert LLMHashingEnv(tokenizer=Answers()).make_tensordict("ab")["observation"].tolist() == [0, 1]


def test_equal_texts_have_equal_hashes() -> None:
    env = LLMHashingEnv(vocab_size=10)
    td = env.reset(prompt([1, 2], [1, 2], [2, 1]))
    same, other = td["hashing"][:2], td["hashing"][2]
    assert same[0] == same[1] != other
    td["action"] = torch.tensor([[3], [4], [3]])
    hashes = env.step(td)["next", "hashing"].flatten().tolist()
    assert len(set(hashes)) == 3


def test_hashes_can_be_made_another_way() -> None:
    env = LLMHashingEnv(vocab_size=10, hashing_module=lambda rows: rows.sum(-1))
    td = env.reset(prompt(1, 2))
    assert td["hashing"].tolist() == [3]
    assert env.step(td.set("action", torch.tensor([4])))["next", "hashing"].tolist() == [7]


def test_what_is_missing_is_named() -> None:
    with pytest.raises(TypeError, match="vocab_size"):
        LLMHashingEnv()
    env = LLMHashingEnv(vocab_size=10)
    with pytest.raises(RuntimeError, match="'observation'"):
        env.reset()
    with pytest.raises(ValueError, match="tokenizer"):
        env.make_tensordict("ab")
    assert "text" not in env.observation_keys
    assert env.reward_keys == []


def test_rows_of_any_shape_are_hashed() -> None:
    rows = torch.randint(100, (2, 3, 4))
    hashes = SipHash()(rows)
    assert hashes.shape == (2, 3)
    assert hashes.dtype is torch.int64
    assert hashes[1, 2] == SipHash()(rows[1, 2])
    assert SipHash(as_tensor=False)(rows) == hashes.flatten().tolist()
    strided = torch.arange(8).reshape(2, 4).t()
    assert torch.equal(SipHash()(strided), SipHash()(strided.contiguous()))
