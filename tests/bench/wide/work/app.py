"""work: squares a number. What goes wrong with it is said by the bench, in the place of an outside service."""

from pydantic import BaseModel

from stafette.core.run import Run
from stafette.relay.parts import part
from tests.bench.wide.outside import outside


class Item(BaseModel):
    """One part."""

    n: int


class Square(BaseModel):
    """What a part comes to."""

    n: int
    square: int


@part()
def work(item: Item, run: Run) -> Square:
    """What the outside says to a number."""
    return Square(n=item.n, square=outside(item.n))


handler = work.handler
