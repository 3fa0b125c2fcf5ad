"""Who may call a model now: slots, minutes, pauses, the breaker, and shares while others wait."""

from typing import Any

from stafette.core.limit import (
    OPEN,
    OPENS_AT,
    Admit,
    Known,
    Later,
    Limits,
    Slot,
    Who,
    admit,
    pause_after_overload,
)

NOW = 600_000.0
ME = Who("acme", "j1")
FIVE = Limits(5)


def slots(*whose: Who, until: float = NOW + 60) -> dict[int, Slot]:
    return {n: Slot(who, until) for n, who in enumerate(whose)}


def reason(known: Known, limits: Limits = FIVE, tokens: int = 10, who: Who = ME) -> str | None:
    decision = admit(known, limits, who, tokens, NOW, 0.5)
    return decision.reason if isinstance(decision, Later) else None


def test_free_slots_are_given_and_dead_ones_are_free() -> None:
    assert admit(Known({}), FIVE, ME, 1, NOW, 0.0) == Admit(0)
    assert admit(Known(slots(ME, ME)), FIVE, ME, 1, NOW, 0.0) == Admit(2)
    assert reason(Known(slots(*[ME] * 5))) == "model_full"
    assert reason(Known(slots(*[ME] * 5, until=NOW))) is None


def test_slots_beyond_a_limit_that_was_lowered_still_count() -> None:
    assert reason(Known({8: Slot(ME, NOW + 9), 9: Slot(ME, NOW + 9)}), Limits(2)) == "model_full"


def test_model_that_asked_to_be_left_alone_is() -> None:
    decision = admit(Known({}, not_before=NOW + 3600), FIVE, ME, 1, NOW, 0.5)
    assert decision == Later(3600, "model_waits")


def test_minutes_have_room_for_so_many_requests_and_tokens() -> None:
    now: dict[str, Any] = {"minute": int(NOW // 60), "requests": 3, "tokens": 900}
    assert reason(Known({}, **now), Limits(5, requests=3)) == "model_full"
    assert reason(Known({}, **now), Limits(5, requests=4)) is None
    assert reason(Known({}, **now), Limits(5, tokens=905)) == "model_full"
    assert reason(Known({}, **now), Limits(5, tokens=910)) is None
    assert reason(Known({}, **now | {"minute": 1}), Limits(5, 3, 905)) is None
    assert reason(Known({}), Limits(5, tokens=5)) is None  # larger than the limit: alone


def test_breaker_opens_after_overloads_in_a_row_and_lets_one_try_when_it_is_over() -> None:
    assert pause_after_overload(OPENS_AT - 1, 5) is None
    assert pause_after_overload(OPENS_AT, 5) == OPEN
    assert pause_after_overload(OPENS_AT, 90) == 90
    assert reason(Known({}, overloads=OPENS_AT)) is None
    assert reason(Known(slots(ME), overloads=OPENS_AT)) == "model_full"


def waiting(*whose: Who, until: float = NOW + 9) -> tuple[Slot, ...]:
    return tuple(Slot(who, until) for who in whose)


def test_tenant_takes_no_more_than_its_share_while_another_waits() -> None:
    other = waiting(Who("umbrella", "k1"))
    assert reason(Known(slots(ME, ME), other)) is None  # 3 of 5 for one of two
    assert reason(Known(slots(ME, ME, ME), other)) == "model_shared"
    assert reason(Known(slots(ME, ME, ME), other), who=Who("umbrella", "k1")) is None
    assert reason(Known(slots(ME, ME, ME), waiting(Who("umbrella", "k1"), until=NOW))) is None
    assert reason(Known(slots(ME, ME, ME), waiting(ME))) is None


def test_job_takes_no_more_than_its_share_of_the_tenants_while_another_waits() -> None:
    other = waiting(Who("acme", "j2"))
    assert reason(Known(slots(ME, ME, ME), other)) == "model_shared"
    assert reason(Known(slots(ME, ME, ME), other), who=Who("acme", "j2")) is None
    assert reason(Known(slots(ME, ME), (*other, *waiting(Who("umbrella", "k1"))))) == "model_shared"


def test_somebody_always_may_take_a_slot_that_is_free() -> None:
    whose = [Who(t, f"{t}{j}") for t in "abcd" for j in range(3)]
    for taken in range(5):
        known = Known(slots(*whose[:taken]), waiting(*whose))
        assert any(reason(known, who=who) is None for who in whose)
