"""REQ-LLM-02: what a provider's wait means, whatever stands in its headers."""

import pytest

from stafette.agent.failures import retry_after

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "3600"}, 3600.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "302539000"}, 302_539.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Tue, 14 Nov 2023 22:14:20 GMT"}, 60.0),
    ],
)
def test_req_llm_02_wait_is_read_from_every_form_of_header(
    headers: dict[str, str], seconds: float
) -> None:
    assert retry_after(headers, NOW) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "-1",
        "nan",
        "inf",
        "-inf",
        "",
        "later",
        "Tue, 14 Nov 2023 22:12:20 GMT",
        "Tue, 99 Nov",
        "1e999",
    ],
)
def test_req_llm_02_wait_that_makes_no_sense_is_none(value: str) -> None:
    assert retry_after({"retry-after": value}, NOW) is None
    assert retry_after({"retry-after-ms": value}, NOW) is None


def test_no_header_is_no_wait() -> None:
    assert retry_after({}, NOW) is None
