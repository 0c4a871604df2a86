"""CSV as a stream: hostile bytes each with their reason, the records after them read on, memory that does not grow."""

from __future__ import annotations

import csv
import io
import resource
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.data.sample import Drop
from omnirl.data.sources.tables import MAX_RECORD_BYTES, MAX_RECORD_LINES, csv_rows
from omnirl.errors import EnvironmentLacks, InvalidInput
from tests.conftest import plain_environment

GOOD = {"a": "1", "b": "x"}


@pytest.fixture
def read(tmp_path):
    """The outcomes of a file: a dictionary for a record, `reason@line` for a drop."""

    def run(content: bytes | str, columns=("a", "b")):
        path = tmp_path / "t.csv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        found = []
        for where, record in csv_rows(path, columns):
            assert where.startswith("t.csv:")
            if isinstance(record, Drop):
                assert record.where == where
                found.append(f"{record.reason}@{where.removeprefix('t.csv:')}")
            else:
                found.append(record)
        return found

    return run


@pytest.mark.parametrize(
    "content",
    [
        "a,b\n1,x\n",
        "a,b\r\n1,x\r\n",
        "a,b\n1,x",
        "\ufeffa,b\n1,x\n",
        '\ufeff"a","b"\r\n"1","x"\r\n',
        "b,c,a\nx,,1\n",
        " a , b \n1,x\n",
    ],
)
def test_the_usual_spellings_of_a_table_are_one(content, read):
    assert read(content) == [GOOD]


def test_values_are_text_and_stay_as_they_are(read):
    texts = ["None", "NA", "null", "nan", "007", "1e5", "", " x ", "é多", "a\u2028b\x85c\x0bd"]
    body = "".join(f"{text},{text}\n" for text in texts)
    assert read(f"a,b\n{body}") == [{"a": text, "b": text} for text in texts]


def test_quoted_line_ends_commas_and_quotes_are_part_of_the_field(read):
    assert read('a,b\r\n"1\n2\r\n3","x,""y"""\r\n1,x\r\n') == [{"a": "1\n2\r\n3", "b": 'x,"y"'}, GOOD]


HOSTILE = [
    (b"", ["empty_line@2"]),
    (b"  \t\r", ["empty_line@2"]),
    (b"1", ["invalid_record@2"]),
    (b"1,x,y", ["invalid_record@2"]),
    (b"1,x,", ["invalid_record@2"]),
    (b'"1"2,x', ["invalid_record@2"]),
    (b"1\rx,2", ["invalid_record@2"]),
    (b"1,a\0b", ["invalid_text@2"]),
    (b"1,caf\xe9", ["invalid_text@2"]),
    ("1,多少".encode("gbk"), ["invalid_text@2"]),
    (b"1,\xed\xa0\x80", ["invalid_text@2"]),
    (b"1," + b"x" * 200_000, ["too_long@2"]),
    (b'1,"' + b"x" * 200_000 + b'"', ["too_long@2"]),
    (b"," * (MAX_RECORD_BYTES - 1), ["invalid_record@2"]),
    (b'1,"' + b"x\n" * MAX_RECORD_LINES + b'"', ["too_long@2", *["invalid_record@%d"] * MAX_RECORD_LINES]),
    (b'1,"x\n' + b"y" * 200_000, ["too_long@2", "too_long@3"]),
]


@pytest.mark.parametrize(("line", "expected"), HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_line_is_dropped_with_its_reason_and_the_others_stay(line, expected, read):
    expected = [text % (2 + at) if "%" in text else text for at, text in enumerate(expected)]
    assert read(b"a,b\n1,x\n1,x\n" + line + b"\n1,x\n1,x\n") == [
        GOOD,
        GOOD,
        *[f"{reason}@{int(at) + 2}" for reason, at in (text.split("@") for text in expected)],
        GOOD,
        GOOD,
    ]


def test_a_quote_that_is_never_closed_costs_its_own_record_alone(read):
    rows = read(b"a,b\n1,x\n" + b'1,"x\n' + b"1,x\n" * 1000)
    assert rows == [GOOD, "too_long@3", *[GOOD] * 1000]
    assert read(b"a,b\n1,x\n" + b'1,"x\n' + b"1,x\n" * 5) == [GOOD, "invalid_record@3", *[GOOD] * 5]


def test_a_quote_inside_a_field_is_a_character(read):
    assert read('a,b\n5" pipe,x\n1,x\n') == [{"a": '5" pipe', "b": "x"}, GOOD]


def test_a_lower_limit_of_the_process_only_drops(read):
    before = csv.field_size_limit(100)
    try:
        assert read("a,b\n1," + "x" * 200 + "\n1,x\n") == ["too_long@2", GOOD]
        assert csv.field_size_limit() == 100
    finally:
        csv.field_size_limit(before)


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        (b"", "is empty", "`a,b`"),
        ("a,b\n1,x\n".encode("utf-16"), "is UTF-16", "iconv -f UTF-16"),
        ("a,b\n1,x\n".encode("utf-16-le"), "is UTF-16", "iconv -f UTF-16"),
        ("a,b\n1,x\n".encode("utf-32"), "is UTF-32", "iconv -f UTF-32"),
        ("a,b,é\n1,x,y\n".encode("latin-1"), "header of `.*` is not UTF-8", "iconv"),
        (("a,b\n" + "1,多少\n" * 9).encode("gbk"), "is not UTF-8, it may be GB18030", "iconv -f GB18030"),
        (b"a,b\r1,x\r1,x\r", "no header", "carriage return"),
        (b"a;b\n1;x\n", "lacks the columns `a`, `b`", "separated by semicolons"),
        (b"a\tb\n1\tx\n", "lacks the columns", "separated by tabs"),
        (b"aa,b\n1,x\n", "lacks the column `a`", "`aa` for `a`"),
        (b"A,b\n1,x\n", "lacks the column `a`", "`A`, `b`"),
        (b"\na,b\n1,x\n", "lacks the columns", "no names"),
        (b"a,b,a\n1,x,1\n", "two columns `a`", "rename"),
        (b'a,"b\n1,x\n', "no header", "a,b"),
        (b"a" * 300_000 + b",b\n1,x\n", r"no header of a CSV file \(too_long\)", "a,b"),
        (bytes(range(256)) * 4000, "header of `.*` is not UTF-8|no header", None),
    ],
)
def test_what_is_no_such_table_is_named_with_its_mend(content, message, hint, read):
    with pytest.raises(InvalidInput, match=message) as caught:
        read(content)
    assert hint is None or hint in caught.value.hint
    assert len(caught.value.hint) < 500


def test_a_file_that_cannot_be_read_is_the_environments(tmp_path):
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(EnvironmentLacks, match="cannot be read"):
        list(csv_rows(tmp_path / "t.csv", ("a",)))


@given(st.binary(max_size=300) | st.lists(st.sampled_from(b'",\n\rx\0\xe9'), max_size=60).map(bytes))
def test_any_bytes_are_records_drops_or_a_named_fault(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(b"a,b\n" + content)
    lines = 0
    try:
        for where, record in csv_rows(path, ("b", "a")):
            line = int(where.rpartition(":")[2])
            assert line > lines, "records come in order, none twice"
            lines = line
            assert isinstance(record, Drop) or [*record] == ["b", "a"]
    except InvalidInput as error:
        assert "not UTF-8" in error.message


ANY_CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@given(st.lists(st.tuples(ANY_CELL, ANY_CELL), max_size=8))
def test_what_the_csv_module_writes_is_read_back(tmp_path_factory, rows):
    text = io.StringIO(newline="")
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerows([("a", "b"), *rows])
    path = tmp_path_factory.getbasetemp() / "written.csv"
    path.write_bytes(text.getvalue().encode())
    assert [record for _, record in csv_rows(path, ("a", "b"))] == [{"a": one, "b": two} for one, two in rows]


def test_memory_does_not_grow_with_the_file(tmp_path):
    code = """
        import sys
        from pathlib import Path
        from omnirl.data.sample import Drop
        from omnirl.data.sources.tables import csv_rows
        print(sum(isinstance(record, Drop) for _, record in csv_rows(Path(sys.argv[1]), ("a", "b"))))
    """
    path = tmp_path / "t.csv"
    with path.open("wb") as file:
        file.write(b"a,b\n")
        file.write(b'1,"' + b"x" * (100 << 20) + b"\n")
        file.write(b'1,"x\n' * 3 + b"1," + b"y" * (100 << 20))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)],
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (96 << 20, 96 << 20)),
    )
    assert done.stderr == ""
    assert int(done.stdout) >= 3
