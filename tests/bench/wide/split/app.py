"""split: fans a job out over numbers, and joins them in order. The policy of the join is a setting."""

import json
import os
from hashlib import sha256

from pydantic import BaseModel

from flows.catalog import Asked
from stafette.core.joins import Policy
from stafette.core.run import Run
from stafette.relay.parts import Joined, fan_out


class Item(BaseModel):
    """One part."""

    n: int


class Square(BaseModel):
    """What a part comes to."""

    n: int
    square: int


class Sum(BaseModel):
    """What the join saw: every part in its order makes this digest, and no other order does."""

    total: int
    failed: int
    digest: str


@fan_out(takes="asked", gives="spread", over="work")
def split(asked: Asked, run: Run) -> list[Item]:
    """So many numbers."""
    return [Item(n=n) for n in range(asked.input["parts"])]


@split.join(
    takes="spread",
    gives="summed",
    then=None,
    policy=Policy(**json.loads(os.environ["POLICY"])),
)
def join(squares: Joined[Square], run: Run) -> Sum:
    """One at a time, as they come."""
    digest = sha256()
    for part in squares:
        digest.update(seen(part.index, part.value.square if part.value else None))
    return Sum(total=squares.total, failed=squares.failed, digest=digest.hexdigest())


def seen(index: int, square: int | None) -> bytes:
    """What goes into the digest for a part."""
    return f"{index}:{square};".encode()


handler = split.handler
