"""Prompts to token ids, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from trunkline.radix import Namespace
from trunkline.radix.tokens import Int32Array
from trunkline.runtime.engine.prompts import encode_prompt
from trunkline.runtime.errors import RequestError
from trunkline.runtime.loading import ChatPrompt, Tokenizer, Transcripts

from .errors import invalid
from .messages import Message
from .tool_prompts import ToolPrompts
from .tools import Tool

__all__ = ["PromptEncoder"]

Result = TypeVar("Result")
SMALL_CHARACTERS = 50_000


class PromptEncoder:
    """A tokenizer behind threads: one for ordinary prompts, one for huge ones, which hold up nobody else."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, max_model_len: int) -> None:
        self.tokenizer = tokenizer
        self.transcripts = Transcripts()
        self._tool_prompts = ToolPrompts(tokenizer)
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._longest_token = max(len(tokenizer.id_to_bytes(id)) for id in range(tokenizer.vocab_size))
        self._small = ThreadPoolExecutor(1, "tokenize")
        self._huge = ThreadPoolExecutor(1, "tokenize-huge")

    def close(self) -> None:
        """Ends the threads; work that has not begun is dropped."""
        for pool in (self._small, self._huge):
            pool.shutdown(wait=False, cancel_futures=True)

    async def prompt(
        self, prompt: str | Sequence[int], *, add_special: bool = True, allow_special: bool = False
    ) -> Int32Array:
        """The ids [tokens] int32 of a text, or of ids, which are checked; an empty text is a BOS if possible.

        Raises ApiError and RequestError for what is empty, too long or out of the vocabulary.
        """
        if not isinstance(prompt, str):
            self._require_room(len(prompt))
            return await self._run(
                len(prompt), lambda: encode_prompt(self.tokenizer, prompt, self._vocab_size)
            )
        ids = await self.text(prompt, add_special=add_special, allow_special=allow_special)
        if len(ids):
            return ids
        if self.tokenizer.bos_token_id is None or not add_special:
            raise RequestError(
                "the prompt is empty, and the model has no token to begin a text with", "prompt"
            )
        return np.array([self.tokenizer.bos_token_id], dtype=np.int32)

    async def text(self, text: str, *, add_special: bool = True, allow_special: bool = False) -> Int32Array:
        """The ids [tokens] int32 of a text, which may be none."""
        self._require_bytes(len(text.encode()), "prompt")
        add_bos = None if add_special else False
        return await self._run(
            len(text), lambda: self.tokenizer.encode(text, allow_special=allow_special, add_bos=add_bos)
        )

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        add_generation_prompt: bool,
        continue_final: bool,
        namespace: Namespace | None = None,
    ) -> ChatPrompt:
        """A conversation in the chat template, with the tools it may use; raises ChatTemplateError.

        With a `namespace`, answers that were given in it are the tokens that were generated.
        """
        size = sum(message.num_bytes for message in messages)
        self._require_bytes(size, "messages")

        def render() -> ChatPrompt:
            given, known = self._tool_prompts.prepared(messages, tools)
            return self.tokenizer.render_chat(
                given,
                tools=known,
                add_generation_prompt=add_generation_prompt,
                continue_final=continue_final,
                transcripts=self.transcripts if namespace is not None else None,
                space="\0".join(namespace or ()),
            )

        return await self._run(size, render)

    async def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """The text of token ids."""
        return await self._run(len(ids), lambda: self.tokenizer.decode(ids, skip_special=skip_special))

    def _require_room(self, num_tokens: int) -> None:
        """Refuses ids that can't fit before each of them is looked at."""
        if num_tokens > self._max_model_len:
            raise invalid(
                f"the prompt has {num_tokens} tokens, but at most {self._max_model_len} fit",
                "prompt",
                "context_length_exceeded",
            )

    def _require_bytes(self, num_bytes: int, param: str) -> None:
        """Refuses text that can't fit even if it were made of the longest tokens only, before it is tokenized."""
        if num_bytes > self._max_model_len * self._longest_token:
            raise invalid(
                f"{param}: {num_bytes} bytes of text are more than the context of {self._max_model_len} tokens can hold",
                param,
                "context_length_exceeded",
            )

    async def _run(self, size: int, work: Callable[[], Result]) -> Result:
        pool = self._small if size < SMALL_CHARACTERS else self._huge
        return await asyncio.get_running_loop().run_in_executor(pool, work)
