"""REQ-ORCH-06: parts that are counted twice, in every order."""

from collections.abc import Iterator
from itertools import permutations, product

import pytest

from tests.support import Stack, running_stack, script_agent

PARTS = 3
# Each part once, and up to two of the deliveries once more, in each order that can be told apart.
ORDERS = sorted(
    {
        order
        for more in product((*range(PARTS), None), repeat=2)
        for order in permutations([*range(PARTS), *(part for part in more if part is not None)])
    }
)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack(keep=False) as running:
        yield running


@pytest.mark.slow
def test_req_orch_06_a_join_runs_once_after_each_part_in_every_order_of_their_deliveries(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_agent(monkeypatch)
    queue = stack.machine.queue("enrich_record")
    for number, order in enumerate(ORDERS):
        job_id = stack.ask(f"order-{number}", PARTS)
        stack.run_until(lambda: stack.machine.backend.count(queue) == PARTS)
        bodies = sorted(stack.take_away("enrich_record"))
        missing = set(range(PARTS))
        for part in order:
            assert ("EVENT#enrich:join#0001" in stack.ending(job_id).journal) is (not missing)
            stack.send("enrich_record", bodies[part])
            stack.machine.run_until_quiet()
            missing.discard(part)
        ending = stack.ending(job_id)
        assert (ending.stage, ending.status) == ("acted", "done"), order
        assert len(ending.parts) == PARTS
        assert [count for name, (count, *_) in ending.joins.items() if "#" in name] == [PARTS]
        assert stack.notices(job_id) == ["ended"], order
    assert len(ORDERS) == 6 + 36 + 150
