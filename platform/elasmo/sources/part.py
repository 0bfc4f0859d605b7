"""What every part of a contract is made of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A frozen part of the contract that takes the keys it names and no others."""

    model_config = ConfigDict(frozen=True, extra="forbid")
