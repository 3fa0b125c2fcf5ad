"""The one client of a provider: shared by threads, closed when the provider is another."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from stafette.agent import model


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("MODEL_PROVIDER", "anthropic")
    monkeypatch.setenv("MODEL_BASE_URL", "http://127.0.0.1:9")


def test_threads_that_begin_at_the_same_time_share_one_client() -> None:
    model.forget()
    together = Barrier(8)

    def mine(_: int) -> int:
        together.wait(10)
        return id(model.client())

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(mine, range(8)))) == 1
    model.forget()


def test_what_is_forgotten_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    old = model.client()
    monkeypatch.setenv("ANTHROPIC_API_KEY", "another")
    assert model.client() is not old
    assert not old.is_closed()  # somebody may be in the middle of a call
    model.forget()
    assert old.is_closed()
