from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.errors import InvalidInput
from omnirl.recipe.layers import KINDS, Expansion, Setting, merge, nest, parse_set
from omnirl.recipe.model import kinds_of

NAMES = st.sampled_from(["a", "b", "kind", "rank"])
VALUES = st.one_of(st.integers(0, 3), st.lists(st.integers(0, 3), max_size=2), st.text("xy", max_size=2))


@st.composite
def layers(draw, origin="x", tables=("data", "verl")):
    """A layer two levels deep, so that two of them never clash."""
    keys = draw(st.lists(st.tuples(st.sampled_from(tables), NAMES), unique=True, max_size=5))
    return {key: Setting(draw(VALUES), f"{origin}:{number}") for number, key in enumerate(keys, 1)}


def merged(*several):
    problems = []
    found = {}
    for layer in several:
        found = merge(found, layer, problems)
    assert problems == []
    return found


@given(layers("x"), layers("y"), layers("z"))
def test_merging_is_associative(x, y, z):
    assert merge(merge(x, y, []), z, []) == merge(x, merge(y, z, []), [])


@given(layers())
def test_an_empty_layer_changes_nothing(layer):
    assert merged({}, layer) == layer == merged(layer, {})


@given(layers("x"), layers("y"))
def test_the_stronger_value_wins_and_the_weaker_is_remembered(weaker, stronger):
    found = merged(weaker, stronger)
    assert found.keys() == weaker.keys() | stronger.keys()
    for key, setting in found.items():
        assert setting.value == (stronger.get(key) or weaker[key]).value
        if key in weaker and key in stronger:
            assert setting.over == (weaker[key],)


@given(st.lists(layers(), max_size=4), st.integers(-9, 9))
def test_set_wins_over_every_file(below, value):
    found = merged(*below, parse_set(f"data.rank = {value}"))
    assert found["data", "rank"].value == value
    assert found["data", "rank"].origin == "--set"
    assert nest(found)["data"]["rank"] == value


@given(layers("x", ("tune", "algo", "data")), layers("y", ("tune", "algo", "data")), st.data())
def test_a_new_kind_drops_the_weaker_settings_of_its_table(weaker, stronger, data):
    for table, kinds in KINDS.items():
        weaker[table, "kind"] = Setting(kinds[0], "x:9")
        stronger[table, "kind"] = Setting(data.draw(st.sampled_from(kinds)), "y:9")
    found = merged(weaker, stronger)
    for table, (one, *_) in KINDS.items():
        changed = stronger[table, "kind"].value != one
        for key in [key for key in weaker if key[0] == table and key[1] != "kind"]:
            assert (key in found) == (key in stronger or not changed)
            if changed and key in found:
                assert found[key].over == ()
    for key in weaker:
        assert key in found or key[0] in KINDS


def test_the_kinds_are_those_of_the_schema():
    for table, kinds in KINDS.items():
        assert tuple(kinds_of(f"{table}.kind")) == kinds


def test_lists_replace_whole():
    found = merged(parse_set("data.train = [1, 2, 3]"), parse_set("data.train = [4]"))
    assert nest(found) == {"data": {"train": [4]}}


@pytest.mark.parametrize("flipped", [False, True])
def test_a_table_where_a_value_is_names_both_places(flipped):
    value = {("data", "train"): Setting(1, "a.toml:1")}
    table = {("data", "train", "files"): Setting(2, "b.toml:2")}
    weaker, stronger = (table, value) if flipped else (value, table)
    problems = []
    assert merge(weaker, stronger, problems) == dict(stronger)
    assert [(problem.code, problem.key) for problem in problems] == [("table-or-value", "data.train")]
    assert {"a.toml:1", "b.toml:2"} == {problems[0].where, problems[0].message.rsplit(" ", 1)[1]}


def test_an_empty_table_gives_way_to_a_full_one():
    empty, full = parse_set("rollout.options = {}"), parse_set("rollout.options.a = 1")
    assert nest(merged(empty, full)) == nest(merged(full, empty)) == {"rollout": {"options": {"a": 1}}}
    assert nest(merged(empty)) == {"rollout": {"options": {}}}


def test_verl_keys_are_the_same_quoted_or_not():
    quoted, bare = parse_set('verl."trainer.save_freq" = 1'), parse_set("verl.trainer.save_freq = 2")
    found = merged(quoted, bare)
    assert nest(found) == {"verl": {"trainer.save_freq": 2}}
    with pytest.raises(InvalidInput, match="set twice"):
        parse_set('verl = { "trainer.save_freq" = 1, trainer = { save_freq = 2 } }')


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("data.train = foo.parquet", 'text needs quotes: `data.train = "foo.parquet"`'),
        ("train.validate_before = True", "write `train.validate_before = true`"),
        ("train.steps = None", "TOML has no null: leave the setting out"),
        ("train.steps", "--set 'train.steps = 3'"),
        ("train.steps =", "--set 'train.steps = 3'"),
        ("", "--set 'train.steps = 3'"),
        ("extends = ['a.toml']", "set single values"),
        ("on.cpu.train.steps = 3", "set single values"),
    ],
)
def test_a_set_that_is_not_toml(word, hint):
    with pytest.raises(InvalidInput) as caught:
        parse_set(word)
    assert caught.value.where == "--set"
    assert hint in caught.value.hint


def test_extends_goes_left_to_right_depth_first(folder, write):
    write("base.toml", "[train]\nsteps = 1\nepochs = 1\n[on.cpu.train]\nseed = 1\n")
    write("left.toml", 'extends = ["base.toml"]\n[train]\nsteps = 2\n')
    write("right.toml", "[train]\nsteps = 3\n[on.cpu]\nextends = ['late.toml']\n[on.cpu.train]\nsteps = 4\n")
    write("late.toml", "[train]\nsteps = 9\nsave_every = 9\n")
    top = write("top.toml", 'extends = ["left.toml", "right.toml"]\n[data]\nsource = "s"\n')
    expansion = Expansion("cpu", [folder])
    found = merged(*expansion.layers(top))
    assert nest(found) == {"data": {"source": "s"}, "train": {"steps": 4, "epochs": 1, "seed": 1, "save_every": 9}}
    assert [old.value for old in found["train", "steps"].over] == [9, 3, 2, 1]
    assert found["train", "steps"].origin == "mine/right.toml:6"
    assert nest(merged(*Expansion("gpu", [folder]).layers(top)))["train"] == {"steps": 3, "epochs": 1}


def test_a_circle_names_both_lines_and_reading_goes_on(folder, write):
    write("b.toml", '# b\nextends = ["a.toml"]\n[train]\nsteps = 1\n')
    top = write("a.toml", '\n\nextends = ["b.toml"]\n')
    expansion = Expansion("cpu", [folder])
    assert nest(merged(*expansion.layers(top))) == {"train": {"steps": 1}}
    (problem,) = expansion.problems
    assert (problem.code, problem.where) == ("circle", "mine/b.toml:2")
    assert "mine/a.toml:3" in problem.message


def test_a_file_to_extend_that_is_not_there(folder, write):
    write("algo/gspo.toml", "[algo]\nkind = 'gspo'\n")
    top = write("a.toml", 'extends = ["algo/gsop.toml"]\n')
    expansion = Expansion("cpu", [folder])
    expansion.layers(top)
    (problem,) = expansion.problems
    assert (problem.where, problem.hint) == ("mine/a.toml:1", "did you mean `algo/gspo.toml`?")


def test_every_broken_file_is_told(folder, write):
    write("b.toml", "= 1\n")
    write("c.toml", b"\xff\xfe")
    top = write("a.toml", 'extends = ["b.toml", "c.toml", "d.toml"]\n[on]\ncpu = 3\n')
    expansion = Expansion("cpu", [folder])
    expansion.layers(top)
    assert [(problem.where, problem.code) for problem in expansion.problems] == [
        ("mine/b.toml:1", "unreadable"),
        ("mine/c.toml:1", "unreadable"),
        ("mine/a.toml:1", "no-such-file"),
        ("mine/a.toml:2", "wrong-type"),
    ]


def test_dates_and_infinities_are_kept_for_the_schema_to_refuse():
    assert nest(parse_set("a = inf")) == {"a": float("inf")}
