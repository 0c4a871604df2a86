from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.plan import hydra

NASTY = [
    "",
    " ",
    " a b ",
    ".*talker.*|.*code2wav.*",
    "a=b",
    "a,b",
    "it's",
    'say "x"',
    "'",
    "''",
    '"',
    "\\",
    "\\\\",
    "a\\",
    "\\'",
    "a\\\\'b\\",
    "[x]",
    "{a:b}",
    "f(x)",
    "true",
    "null",
    "NaN",
    "1",
    "1e-6",
    "-",
    "~x",
    "+x",
    "#x",
    "a:b",
    "pkg://a.b",
    "C:\\dir\\file",
    "%",
    "ünï",
    "日本",
    "\t",
    "a\tb",
    "@x",
    "?",
    "???",
    "*",
    "!x",
    "<answer>",
    "a;b",
    "$x",
    "q_proj",
]
VALUES = [
    *NASTY,
    True,
    False,
    None,
    0,
    -3,
    3e-06,
    1e22,
    -0.5,
    1e-300,
    [],
    ["q_proj", "k_proj"],
    NASTY,
    [1, [2.5, [None, True]], {"a": "x y", "b": [1]}],
    {"a": {"b": [1, "2"]}},
]
TEXT = st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]))
SCALARS = st.one_of(TEXT, st.sampled_from(NASTY), st.booleans(), st.none(), st.integers(), st.floats(allow_nan=False))
ANY = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]*", fullmatch=True), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(ANY)
def test_what_is_written_reads_back(value):
    assert hydra.parse(f"a.b={hydra.write(value)}") == ("a.b", value, False)


@given(st.one_of(SCALARS, st.lists(SCALARS, max_size=3)))
def test_hydras_own_parser_agrees(value):
    pytest.importorskip("hydra")
    from hydra.core.override_parser.overrides_parser import OverridesParser

    word = f"a.b={hydra.write(value)}"
    assert "\n" not in word
    (override,) = OverridesParser.create().parse_overrides([word])
    assert override.value() == value
    assert type(override.value()) is type(value)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:30])
def test_each_nasty_value(value):
    assert hydra.parse(f"k={hydra.write(value)}") == ("k", value, False)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("k=", ""),
        ("k=3", 3),
        ("k=1_000", 1000),
        ("k=1e-6", 1e-6),
        ("k=1.", 1.0),
        ("k=.5", 0.5),
        ("k=-inf", -math.inf),
        ("k=TRUE", True),
        ("k=Null", None),
        ("k=a b", "a b"),
        ("k= a ", "a"),
        ("k=[a, b ,c]", ["a", "b", "c"]),
        ("k=['a b',\"c,d\"]", ["a b", "c,d"]),
        ("k={a:1, b: [x]}", {"a": 1, "b": ["x"]}),
        ("k=[]", []),
        ("k={}", {}),
        ("k=a\\,b", "a,b"),
        ("k=/data/x.parquet", "/data/x.parquet"),
        ("k=${trainer.test_freq}", "${trainer.test_freq}"),
        ("k=a.b|c", "a.b|c"),
        ("k='1'", "1"),
    ],
)
def test_words_are_read_with_their_types(word, value):
    _, found, _ = hydra.parse(word)
    assert (found, type(found)) == (value, type(value))


@given(
    st.sampled_from(["k=[a, b ,c]", "k=1e-6", "k=a b", "k={a:1, b: [x]}", "k=1_0", "k=.5", "k=a.b|c", "k='1'", "k=x-1"])
)
def test_words_are_read_as_hydra_reads_them(word):
    pytest.importorskip("hydra")
    from hydra.core.override_parser.overrides_parser import OverridesParser

    assert hydra.parse(word)[1] == OverridesParser.create().parse_override(word).value()


@pytest.mark.parametrize(("word", "plus"), [("k=1", False), ("+k=1", True), ("++k=1", True)])
def test_the_plus_is_told(word, plus):
    assert hydra.parse(word) == ("k", 1, plus)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("~trainer.logger", "cannot be deleted"),
        ("trainer.logger", "must be `key=value`"),
        ("=3", "must be `key=value`"),
        ("-1", "must be `key=value`"),
        ("k=a,b", "put a list in brackets"),
        ("k=choice(a,b)", "function of Hydra"),
        ("k=[a", "lacks a `]`"),
        ("k={a", "lacks a `:`"),
        ("k='a", "lacks a closing '"),
        ("k=[a]b", "cannot be read from `b`"),
        ("k=]", "lacks a value"),
    ],
)
def test_what_a_plan_cannot_show_is_refused(word, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        hydra.parse(word)


@pytest.mark.parametrize("value", ["a\nb", "a\0", {"a b": 1}, {"": 1}, [{"true": 1}]])
def test_what_hydra_cannot_take_is_refused(value):
    with pytest.raises(ValueError, match="cannot be"):
        hydra.write(value)
