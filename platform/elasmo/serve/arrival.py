"""What is known of a request before its body is read: who asks, and by when it has to be done."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from elasmo.serve.callers import Caller
from elasmo.serve.deadline import Deadline


@dataclass(frozen=True)
class Arrival:
    """A request at the door.

    Attributes:
        caller: whose it is.
        deadline: counted from now, so a slow body takes from the time of its answer.
        began: monotonic seconds.
    """

    caller: Caller
    deadline: Deadline
    began: float = field(default_factory=time.monotonic)
