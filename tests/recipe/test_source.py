from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.errors import InvalidInput
from omnirl.recipe.source import key_lines, read


def test_every_key_has_its_line():
    text = (
        "# a = 1\n"
        'extends = ["a.toml", # "b"\n'
        '  "c.toml",\n'
        "]\n"
        '"quoted.key" = 1\n'
        'a.\'b c\'.d = """\n'
        "x = 1\n"
        "[not.a.table]\n"
        '""""\n'
        "\n"
        '[table . "with.dots"] # comment\n'
        "one = '''\n"
        "[x]\n"
        "'''\n"
        'two = {x = 1, y = "]"}\n'
        "three = 'it\"s'\n"
        "[[list]]\n"
        'name = "a"\n'
        "[[list]]\n"
        'name = "b"'
    )
    lines = key_lines(text)
    assert lines == {
        ("extends",): 2,
        ("quoted.key",): 5,
        ("a",): 6,
        ("a", "b c"): 6,
        ("a", "b c", "d"): 6,
        ("table",): 11,
        ("table", "with.dots"): 11,
        ("table", "with.dots", "one"): 12,
        ("table", "with.dots", "two"): 15,
        ("table", "with.dots", "three"): 16,
        ("list",): 17,
        ("list", "name"): 18,
    }


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", '"x.y"', "'q r'"]),
            st.sampled_from(['"#"', "'''\n\n'''", '"""\na = 1\n"""', "[1,\n2]", "1 # [x]", "{z = 1}", '"\\""', "true"]),
        ),
        unique_by=lambda pair: pair[0],
    )
)
def test_lines_are_counted_past_any_value(pairs):
    text, expected = "", {}
    for key, value in pairs:
        expected[(key.strip("\"'"),)] = text.count("\n") + 1
        text += f"{key} = {value}\n"
    assert key_lines(text) == expected


@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path, prefix, newline):
    path = tmp_path / "a.toml"
    path.write_bytes(
        prefix + newline.join([b"# first", b"[train]", b"steps = 3", b"note = '''a", b"b'''", b"epochs = 2", b""])
    )
    source = read(path)
    assert source.values == {"train": {"steps": 3, "note": "a\nb", "epochs": 2}}
    assert source.origin(("train", "epochs")).endswith("a.toml:6")


@pytest.mark.parametrize(
    ("data", "line", "message", "hint"),
    [
        (b"", None, "is empty", "key = value"),
        (b" \n\xef\xbb\xbf", 2, "is not TOML", None),
        (b"a = 1\nb = [1\nc = 2\n", 3, "is not TOML", None),
        (b"a = 1\nb == 2\n", 2, "is not TOML", None),
        (b"a = 1\na = 2\n", 2, "is not TOML", None),
        (b"a = 1\n\nb = '''never ends", 3, "is not TOML", None),
        (b"[train]\nsteps = many\n", 2, "is not TOML", 'text needs quotes: `steps = "many"`'),
        (b"[train]\nflag = True\n", 2, "is not TOML", "write `flag = true`"),
        (b"[train]\nsteps = None\n", 2, "is not TOML", "TOML has no null"),
        ("a = 1\n".encode("utf-16"), 1, "is UTF-16", "UTF-8"),
        ("# ok\nb = 'ü'\n".encode("latin-1"), 2, "byte 0xfc is not UTF-8", "UTF-8"),
        (b"a = 1\nb = 2\0\n", 2, "NUL", "not a text file"),
    ],
)
def test_what_is_not_toml_is_told_with_its_line(tmp_path, data, line, message, hint):
    path = tmp_path / "bad.toml"
    path.write_bytes(data)
    with pytest.raises(InvalidInput) as caught:
        read(path)
    assert message in caught.value.message
    assert caught.value.where == str(path) + (f":{line}" if line else "")
    assert (hint or "") in (caught.value.hint or "")


def test_a_folder_in_the_place_of_a_file(tmp_path: Path):
    with pytest.raises(InvalidInput, match="cannot be read"):
        read(tmp_path)
