"""Reading records: what json reads whole is read here piece by piece, a bad record costs itself, memory stays flat."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.data.sample import Drop
from omnirl.data.sources import records
from omnirl.data.sources.records import MAX_RECORD_BYTES, is_clean, json_array, json_lines
from omnirl.errors import EnvironmentLacks, InvalidInput


def write(folder: Path, content: bytes | str) -> Path:
    path = folder / "input.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def outcomes(stream) -> list:
    """The values, with the reason in place of a drop."""
    return [value.reason if isinstance(value, Drop) else value for _, value in stream]


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(
    values=st.lists(ANY_JSON),
    indent=st.none() | st.integers(0, 3),
    ascii_only=st.booleans(),
    block_bytes=st.integers(1, 40),
)
def test_any_array_reads_as_json_reads_it_whatever_the_block(values, indent, ascii_only, block_bytes, tmp_path_factory):
    path = write(tmp_path_factory.mktemp("any"), json.dumps(values, indent=indent, ensure_ascii=ascii_only))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_BLOCK_BYTES", block_bytes)
        read = list(json_array(path))
    assert [value for _, value in read] == values
    assert [where for where, _ in read] == [f"input.json:record {n}" for n in range(len(values))]


@given(values=st.lists(ANY_JSON))
def test_any_lines_read_as_json_reads_them(values, tmp_path_factory):
    path = write(tmp_path_factory.mktemp("any"), "".join(f"{json.dumps(value)}\n" for value in values))
    if values and isinstance(values[0], list) and (not values[0] or isinstance(values[0][0], dict)):
        return  # what begins like an array of objects is refused as such
    read = list(json_lines(path))
    assert [value for _, value in read] == values
    assert [where for where, _ in read] == [f"input.json:{n}" for n in range(1, len(values) + 1)]


@given(
    content=st.binary(max_size=60) | st.text('[]{},:"\\ \n1truefalsnl\xe9').map(str.encode),
    block_bytes=st.integers(1, 9),
)
def test_any_bytes_give_values_drops_or_a_named_fault(content, block_bytes, tmp_path_factory):
    path = write(tmp_path_factory.mktemp("any"), content)
    for read in (json_array, json_lines):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(records, "_BLOCK_BYTES", block_bytes)
            try:
                assert len(list(read(path))) <= len(content)
            except InvalidInput as error:
                assert str(path) in error.message
                assert error.hint


BAD = [
    (b"{nonsense}", "invalid_json"),
    (b"", "invalid_json"),
    (b'{"a": [1, 2}', None),
    (b'{"a": "x\ny"}', "invalid_json"),
    (b'{"a": "\\q ] } , \\" ["}', "invalid_json"),
    (b"1" * 5000, "invalid_json"),
    (b"[" * 100_000 + b"]" * 100_000, "invalid_json"),
    (b'{"a": "\xff"}', "invalid_text"),
    (b'{"a": "\xed\xa0\x80"}', "invalid_text"),
    (b'{"a": "' + "多".encode("gbk") + b'"}', "invalid_text"),
    (b'{"a": "' + b"x" * 10_000_000 + b'"}', "too_long"),
    (b'{"a": "' + b"x" * MAX_RECORD_BYTES + b'"}', "too_long"),
    (b"[" + b"1," * 2_000_000 + b"1]", "too_long"),
    (b"{" + b"[],{}" * 1_000_000 + b"}", "too_long"),
]


@pytest.mark.parametrize(("element", "reason"), BAD, ids=lambda value: str(value)[:20])
def test_a_bad_element_costs_itself(element, reason, tmp_path):
    good = b'{"b": "][}{,\\"\\\\"}'
    path = write(tmp_path, b"[" + b",".join([good, good, element, good, good]) + b"]")
    if reason is None:
        with pytest.raises(InvalidInput, match="cut short: its JSON array ends in record 2"):
            list(json_array(path))
        return
    value = json.loads(good)
    assert outcomes(json_array(path)) == [value, value, reason, value, value]
    assert [found.where for _, found in json_array(path) if isinstance(found, Drop)] == ["input.json:record 2"]


@pytest.mark.parametrize("depth", [10, 500])
def test_nesting_that_python_can_read_is_read(depth, tmp_path):
    path = write(tmp_path, "[1, " + "[" * depth + "]" * depth + "]")
    assert outcomes(json_array(path))[0] == 1
    assert isinstance(outcomes(json_array(path))[1], list)


def test_a_record_of_the_greatest_length_is_read(tmp_path):
    text = "x" * (MAX_RECORD_BYTES - 2)
    assert outcomes(json_array(write(tmp_path, json.dumps([text, "y"])))) == [text, "y"]
    assert outcomes(json_array(write(tmp_path, json.dumps([text + "x", "y"])))) == ["too_long", "y"]
    lines = f'"{text[1:]}"\n"{text}x"\n"y"'
    assert outcomes(json_lines(write(tmp_path, lines))) == [text[1:], "too_long", "y"]


@pytest.mark.parametrize(
    ("content", "values"),
    [
        ("", []),
        (" \n\t", []),
        ("[]", []),
        (" [ ] \n", []),
        ("[1,]", [1]),
        ("\ufeff[1, 2]", [1, 2]),
        ("\ufeff\n [1]", [1]),
        ("[12345678901234567890, 1.5e3, null]", [12345678901234567890, 1500.0, None]),
        ('{"a": 1}\n{"a": 2}\n', [{"a": 1}, {"a": 2}]),
        ('\ufeff{"a": 1}\n\n{"a"\r\n{"a": 2}', [{"a": 1}, "empty_line", "invalid_json", {"a": 2}]),
        ('\n{"a": 1}', ["empty_line", {"a": 1}]),
        ('["\\ud83d"]', ["\ud83d"]),
    ],
)
def test_arrays_and_what_stands_for_them(content, values, tmp_path):
    found = outcomes(json_array(write(tmp_path, content)))
    assert found == values


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "cut short: its JSON array ends right after its start"),
        ('[{"a": 1}', "ends in record 0, or right after it"),
        ('[{"a": 1},', "ends in record 0, or right after it"),
        ('[{"a": 1}, {"b": "x', "ends in record 1"),
        ('[{"a": 1} {"b": 2}]', "there is no comma after record 0"),
        ("[truefalse]", "there is no comma after record 0"),
        ("[1, 2}]", "there is no comma after record 1"),
        ("[1]\n[2]", "goes on after the end"),
    ],
)
def test_a_damaged_array_is_named(content, message, tmp_path):
    path = write(tmp_path, content)
    with pytest.raises(InvalidInput, match=message) as caught:
        list(json_array(path))
    assert str(path) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16"),
        ("utf-16-be", "UTF-16"),
        ("utf-32", "UTF-32"),
        ("utf-32-be", "UTF-32"),
    ],
)
@pytest.mark.parametrize("read", [json_array, json_lines])
def test_wide_encodings_are_named(encoding, name, read, tmp_path):
    path = write(tmp_path, '{"a": 1}\n{"a": 2}'.encode(encoding))
    with pytest.raises(InvalidInput, match=f"is {name}, not UTF-8") as caught:
        list(read(path))
    assert caught.value.hint.startswith(f"iconv -f {name} -t UTF-8 {path}")


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_a_file_in_another_encoding_is_named_and_one_bad_record_is_not_one(count, tmp_path):
    chinese = [{"a": "多少"}] * count
    for read, text in (
        (json_array, json.dumps(chinese, ensure_ascii=False, indent=1)),
        (json_lines, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in chinese)),
    ):
        path = write(tmp_path, text.encode("gbk"))
        with pytest.raises(InvalidInput, match=r"is not UTF-8, it may be GB18030") as caught:
            list(read(path))
        assert "iconv -f GB18030" in caught.value.hint
        path = write(tmp_path, text.encode())
        assert outcomes(read(path)) == chinese
    path = write(tmp_path, b'"\xff\xff"\n' * count)
    with pytest.raises(InvalidInput, match=r"is not UTF-8$"):
        list(json_lines(path))
    path = write(tmp_path, b'"a"\n"b"\n"\xff\xff"\n' + b'"c"\n' * count)
    assert outcomes(json_lines(path)) == ["a", "b", "invalid_text", *["c"] * count]


def test_lines_that_are_an_array_are_named(tmp_path):
    with pytest.raises(InvalidInput, match="one JSON array"):
        list(json_lines(write(tmp_path, '[{"a": 1}]')))


def test_a_file_that_cannot_be_read_is_the_environments(tmp_path):
    for read in (json_array, json_lines):
        with pytest.raises(EnvironmentLacks, match="cannot be read"):
            list(read(tmp_path / "none"))


@pytest.mark.parametrize(("read", "join"), [(json_array, "[%s]"), (json_lines, "%s")])
def test_memory_does_not_grow_with_the_file(read, join, tmp_path):
    def peak_bytes(count: int) -> int:
        separator = ",\n" if join == "[%s]" else "\n"
        path = write(tmp_path, join % separator.join(json.dumps({"n": n, "text": "x" * 500}) for n in range(count)))
        tracemalloc.start()
        try:
            assert sum(1 for _ in read(path)) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak_bytes(2_000), peak_bytes(40_000)
    assert large < 1.2 * small + 100_000


def test_one_endless_record_is_not_held(tmp_path):
    for read, content in ((json_array, b'[1, {"a": "%s"}, 2]'), (json_lines, b'1\n{"a": "%s"}\n2')):
        path = write(tmp_path, content % (b"x" * 30_000_000 + b"\\\\" * 500_000))
        tracemalloc.start()
        try:
            assert outcomes(read(path)) == [1, "too_long", 2]
            assert tracemalloc.get_traced_memory()[1] < 12 * MAX_RECORD_BYTES
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "clean"), [("", True), ("é图\u2028\U0001f600", True), ("a\0", False), ("\udc00", False)]
)
def test_what_can_be_stored(text, clean):
    assert is_clean(text) is clean
