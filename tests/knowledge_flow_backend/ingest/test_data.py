"""Values in columns and records in lines."""

import json

import pytest

from knowledge_flow_backend.ingest.blocks import Kind
from knowledge_flow_backend.ingest.parsers import csv, jsonl
from knowledge_flow_backend.library.reasons import Reason, Refused


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found(delimiter: str) -> None:
    lines = [delimiter.join(row) for row in (["name", "note"], ["Ada", '"a, b; c"'], ["Alan", "3,5"])]
    parsed = csv.parse("\n".join(lines).replace("3,5", '"3,5"').encode())
    assert parsed.content == "| name | note |\n|---|---|\n| Ada | a, b; c |\n| Alan | 3,5 |"
    assert [block.kind for block in parsed.blocks] == [Kind.TABLE]


def test_cells_may_hold_lines_and_bars_and_another_charset() -> None:
    parsed = csv.parse('nom,note\r\n"Zoé","a\r\nb|c"\r\n'.encode("cp1252"))
    assert parsed.content == "| nom | note |\n|---|---|\n| Zoé | a b\\|c |"


def test_numbers_alone_are_no_header() -> None:
    assert csv.parse(b"1,2.5\n3,4\n").content.startswith("| column 1 | column 2 |\n|---|---|\n| 1 | 2.5 |")


def test_rows_of_different_widths_are_kept_whole() -> None:
    assert csv.parse(b"a,b\n1,2,3\n\n4\n").content == "| a | b |  |\n|---|---|---|\n| 1 | 2 | 3 |\n| 4 |  |  |"


def test_a_quote_that_is_never_closed_hides_no_rows() -> None:
    rows = "".join(f"{number},pipe {'x' * 60}\n" for number in range(3000))
    parsed = csv.parse(f'number,size\n0,"open\n{rows}'.encode())
    assert parsed.content.count("\n") == 3002


def test_the_rows_behind_such_a_quote_stay_rows_in_a_short_file_too() -> None:
    parsed = csv.parse(b'number,size\n1,"open\n2,y\n3,z\n')
    assert parsed.content == '| number | size |\n|---|---|\n| 1 | "open |\n| 2 | y |\n| 3 | z |'


def test_a_long_text_in_a_cell_is_one_cell() -> None:
    parsed = csv.parse(('title,text\nA,"' + "word, \n" * 30_000 + '"\nB,short\n').encode())
    assert [line[:10] for line in parsed.content.split("\n")] == ["| title | ", "|---|---|", "| A | word", "| B | shor"]


def test_too_many_columns_are_cut_and_said() -> None:
    parsed = csv.parse(b",".join(b"c%d" % number for number in range(400)) + b"\n" + b"v," * 399 + b"v\n")
    assert parsed.cut == "Of 400 columns, the first 256 were read."
    assert "c255" in parsed.content
    assert "c256" not in parsed.content
    assert parsed.content.endswith(f"*{parsed.cut}*")


def test_an_inflating_table_is_cut_and_said() -> None:
    parsed = csv.parse(b"a,b\n" + b"x,\n" * 5000, max_chars=1000)
    assert parsed.cut.startswith("The table goes on: its first ")
    assert len(parsed.content) < 1200


def test_a_table_ends_at_its_bound_of_cells_empty_ones_included() -> None:
    parsed = csv.parse(b"a," * 99 + b"b\n" + b"x\n" * 5000, max_cells=1000)
    assert parsed.cut.startswith("The table goes on: its first ")
    assert parsed.content.count("|") < 1400


def test_commas_alone_are_no_text() -> None:
    with pytest.raises(Refused) as refused:
        csv.parse(b",,,\n,,,\n")
    assert refused.value.reason is Reason.NO_TEXT


def test_records_are_told_key_by_key() -> None:
    records = [
        {"title": "The wheel", "body": "First line.\nSecond line.", "tags": ["a", "b"], "none": None, "n": 2},
        {"who": {"name": "Ada", "born": {"year": 1815}}, "rows": [{"x": 1}]},
        "a text",
    ]
    parsed = jsonl.parse("\n".join(json.dumps(record) for record in records).encode())
    assert [parsed.content[block.start : block.end] for block in parsed.blocks] == [
        "title: The wheel\nbody: First line.\nSecond line.\ntags: a, b\nn: 2",
        'who.name: Ada\nwho.born.year: 1815\nrows: [{"x":1}]',
        "a text",
    ]
    assert {block.kind for block in parsed.blocks} == {Kind.RECORD}


def test_single_broken_lines_are_left_out_and_said() -> None:
    parsed = jsonl.parse(b"\n".join([b'{"a": 1}'] * 20 + [b'{"a": ']))
    assert parsed.cut == "1 of 21 lines are no JSON and were left out."
    assert parsed.content.count("a: 1") == 20


@pytest.mark.parametrize("data", [b"no json\nat all\n", b'{"a":' * 100_000])
def test_what_is_no_json_is_unreadable(data: bytes) -> None:
    with pytest.raises(Refused) as refused:
        jsonl.parse(data)
    assert refused.value.reason is Reason.UNREADABLE


def test_an_inflating_record_file_is_cut_and_said() -> None:
    assert jsonl.parse(b'{"key": "value"}\n' * 50, max_chars=100).cut.startswith("The file goes on: its first ")
