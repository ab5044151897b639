"""What every route needs: the engine, the tokenizer, the limits."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from starlette.requests import Request

from trunkline.frontend.analyze.request_log import RequestLog
from trunkline.radix import Namespace
from trunkline.radix.tokens import Int32Array
from trunkline.runtime.engine.async_engine import AsyncEngine
from trunkline.runtime.engine.prompts import limit_output
from trunkline.runtime.errors import RequestError
from trunkline.runtime.loading import Tokenizer
from trunkline.runtime.sampling import SamplingParams

from .auth import namespace_for
from .encoding import PromptEncoder
from .errors import ApiError, invalid
from .explanations import Explanations
from .generation import Generation
from .ledger import LedgerBook
from .limits import WaitingRoom
from .metrics import Metrics
from .schema_parts import RequestBody
from .schemas import GenerationRequest
from .settings import ServerSettings

__all__ = ["Service"]

logger = logging.getLogger(__name__)

MAX_EXPLANATIONS = 1024
MAX_WARNED_FIELDS = 1000
MAX_LABEL = 200


class Service:
    """One server: shared by all routes, made by `create_app`."""

    def __init__(
        self,
        engine: AsyncEngine,
        tokenizer: Tokenizer,
        settings: ServerSettings,
        log: RequestLog | None = None,
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.info = engine.info
        self.encoder = PromptEncoder(tokenizer, self.info.vocab_size, self.info.max_model_len)
        self.tokenizer = tokenizer
        self.book = LedgerBook(self.encoder.transcripts, log)
        self.room = WaitingRoom(settings.max_queue)
        self.metrics = Metrics(engine.stats, lambda: self.room.num_waiting)
        self.names = settings.served_model_names or (self.info.model_name,)
        self.started = int(time.time())
        self.explanations = Explanations(MAX_EXPLANATIONS)
        self.generations: set[Generation] = set()
        self._warned: set[str] = set()

    def check_model(self, name: str | None) -> None:
        """Raises ApiError (404) for a model that isn't served here; None stands for the one that is."""
        if name is not None and name not in self.names and not self.settings.accept_any_model:
            known = ", ".join(self.names)
            raise ApiError(
                404, f"there is no model of this name; known: {known}", param="model", code="model_not_found"
            )

    def check_unknown(self, body: RequestBody) -> None:
        """Refuses unknown fields, or names each once in the log, as the settings want it."""
        unknown = [name[:100] for name in body.unknown if name not in body.not_built]
        if unknown and self.settings.strict_fields:
            raise invalid(f"{unknown[0]}: there is no such field", unknown[0], "unknown_field")
        new = [name for name in unknown if name not in self._warned]
        if new and len(self._warned) < MAX_WARNED_FIELDS:
            self._warned.update(new)
            logger.warning("ignored unknown fields: %s", ", ".join(new))

    def fitted(
        self, params: SamplingParams, prompts: Sequence[Int32Array]
    ) -> tuple[SamplingParams, int | None]:
        """The params that the prompts leave room for, and what max_tokens was cut to, if it was.

        More than the whole context means as much as fits. Raises ApiError (400) for prompts that don't fit,
        and for a max_tokens that doesn't, unless the settings want it cut.
        """
        longest = max(map(len, prompts))
        limit = self.info.max_model_len
        try:
            limit_output(longest, replace(params, max_tokens=None, min_tokens=0), limit)
            cut = params.max_tokens is not None and params.max_tokens > limit - longest
            if cut and (self.settings.clamp_max_tokens or (params.max_tokens or 0) > limit):
                return replace(params, max_tokens=limit - longest), limit - longest
            limit_output(longest, params, limit)
        except RequestError as error:
            raise invalid(str(error), error.param, "context_length_exceeded") from None
        return params, None

    def namespace(self, request: Request, salt: str | None) -> Namespace:
        """The part of the prefix cache that a request may see."""
        return namespace_for(self.tenant(request), salt)

    def labels(self, request: Request, body: GenerationRequest) -> dict[str, str]:
        """What the request log tells a request by: the model's name, the client's session, the key's digest."""
        known = {
            "model": body.model,
            "session": request.headers.get("x-session-id", body.user or "")[:MAX_LABEL],
            "tenant": self.tenant(request) or "",
        }
        return {name: value for name, value in known.items() if value}

    def tenant(self, request: Request) -> str | None:
        """Whose prefix cache it is, where each API key has its own."""
        return request.scope["state"].get("tenant") if self.settings.namespace_per_key else None

    @contextmanager
    def listed(self, generation: Generation) -> Iterator[None]:
        """Lets `cut_all` reach a generation while it runs."""
        self.generations.add(generation)
        try:
            yield
        finally:
            self.generations.discard(generation)

    def cut_all(self, error: ApiError) -> None:
        """Ends every running generation with `error`."""
        for generation in self.generations:
            generation.cut(error)
