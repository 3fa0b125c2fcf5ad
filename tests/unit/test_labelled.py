"""Labelled lines: a wrong file names its lines and why; a sample and its halves are drawn the same again."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local import labelled
from local.labelled import BadLinesError, Line

ABSTAIN = frozenset({"none", "oos"})


def read(folder: Path, text: str, name: str = "lines.jsonl", label: str = "label") -> list[Line]:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return labelled.read(file, label=label, abstain=ABSTAIN)


def test_json_lines_and_tables_say_the_same(tmp_path: Path) -> None:
    values = [{"text": "a,\n“b”", "label": "x"}, {"text": "c", "label": "oos"}]
    values += [{"text": "d", "label": ""}, {"text": "e", "label": None}]
    lines = "\n".join(json.dumps(value) for value in values) + "\n\n"
    table = '\ufefftext,label\r\n"a,\n“b”",x\r\nc,oos\r\nd,\r\n'
    found = read(tmp_path, lines)
    assert [(line.text, line.label) for line in found] == [
        ("a,\n“b”", "x"),
        ("c", None),
        ("d", None),
        ("e", None),
    ]
    told = read(tmp_path, table, "lines.csv")
    assert [(line.text, line.label) for line in told] == [(e.text, e.label) for e in found[:3]]


def test_label_may_stand_in_another_column(tmp_path: Path) -> None:
    [line] = read(tmp_path, "text,category\nhello,x\n", "lines.csv", label="category")
    assert line.label == "x"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.jsonl", '{"text": "a", "label": "x"}\n{"text": \n', "line 2: not JSON"),
        ("a.jsonl", '{"text": "a", "label": "x"}\n\n[1]\n', "line 3: not an object"),
        ("a.jsonl", '{"label": "x"}\n', "line 1: no text"),
        ("a.jsonl", '{"text": "  ", "label": "x"}\n', "line 1: no text"),
        ("a.jsonl", '{"text": "a"}\n', "line 1: no field label"),
        ("a.jsonl", '{"text": "a", "label": 3}\n', "line 1: label is no text"),
        ("a.jsonl", "\n", "it holds no line"),
        ("a.csv", "text,label\na,b,c\n", "line 2: more cells than columns"),
        ("a.csv", "text,label\na,b\nc\n,d\n", "line 4: no text"),
        ("a.csv", "text;label\na;b\n", "line 2: no text"),
        ("a.csv", 'text,label\n"a,b\n', "not CSV"),
        ("a.jsonl", "[" * 100_000, "line 1: not JSON"),
    ],
)
def test_wrong_line_is_named_with_the_reason(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    with pytest.raises(BadLinesError, match=told):
        read(tmp_path, text, name)


def test_many_wrong_lines_are_counted_and_the_first_are_told(tmp_path: Path) -> None:
    with pytest.raises(BadLinesError, match=r"line 10: no text; and 5 more"):
        read(tmp_path, '{"label": "x"}\n' * 15)


def test_file_that_is_not_there_or_no_text_is_told_of(tmp_path: Path) -> None:
    for file in (tmp_path / "gone.csv", tmp_path / "binary.csv"):
        (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\xff")
        with pytest.raises(BadLinesError, match="cannot be read"):
            labelled.read(file, label="label", abstain=ABSTAIN)


def test_label_that_cannot_be_said_is_named_with_its_line() -> None:
    lines = [Line(1, "a", "x"), Line(2, "b", "y"), Line(3, "c", None)]
    labelled.check_labels(lines, {"x", "y"})
    with pytest.raises(BadLinesError, match=r"line 2: label 'y'.* there are: x"):
        labelled.check_labels(lines, {"x"})


LINES = [Line(n, str(n), None) for n in range(1, 101)]


@given(st.integers(1, 120), st.integers(0, 2**32))
def test_sample_is_drawn_the_same_again_and_keeps_the_order(limit: int, seed: int) -> None:
    drawn = labelled.sample(LINES, limit, seed)
    assert drawn == labelled.sample(LINES, limit, seed)
    assert len({line.number for line in drawn}) == min(limit, 100)
    assert drawn == sorted(drawn, key=lambda line: line.number)


@given(st.integers(2, 200), st.integers(0, 2**32))
def test_halves_share_nothing_and_leave_nothing_out(count: int, seed: int) -> None:
    one, other = labelled.halves(count, seed)
    assert one | other == set(range(count))
    assert not one & other
    assert abs(len(one) - len(other)) <= 1


def test_digest_is_of_texts_and_labels_in_any_order() -> None:
    lines = [Line(1, "a", "x"), Line(2, "b", None)]
    again = [Line(7, "b", None), Line(8, "a", "x")]
    assert labelled.digest(lines) == labelled.digest(again)
    assert labelled.digest(lines) != labelled.digest([Line(1, "a", "y"), Line(2, "b", None)])


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("text,label\nhello\n", "line 2: fewer cells than columns"),
        ("text,label\nhello,a,b\n", "line 2: more cells than columns"),
        ("text,text,label\na,b,c\n", "line 1: two columns of one name"),
    ],
)
def test_table_that_was_cut_off_is_wrong_and_no_abstention(
    tmp_path: Path, table: str, told: str
) -> None:
    with pytest.raises(BadLinesError, match=told):
        read(tmp_path, table, "lines.csv")


def test_of_a_strange_label_the_beginning_is_told() -> None:
    with pytest.raises(BadLinesError) as wrong:
        labelled.check_labels([Line(1, "a", "x" * 2_000_000)], {"a"})
    assert len(str(wrong.value)) < 300
