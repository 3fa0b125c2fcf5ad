"""A short form of `make bench`: no effect twice and none missing, whatever an unkind outside does."""

from tests.bench import effects


def test_a_hundred_and_fifty_effects_on_an_unkind_outside_are_done_once_or_wait_for_a_person() -> (
    None
):
    rows, met = effects.run(range(150), seed=2)
    for row in rows:
        assert (row.twice, row.missing, row.wrong) == (0, 0, [])
        assert row.runs == 50
        assert row.doubts == row.settled + row.waiting > 0
    assert [row.kind for row in rows if row.waiting] == ["ask"]
    assert set(met) >= {
        "request lost",
        "reply lost",
        "done later, no reply",
        "refused, nothing done",
    }
