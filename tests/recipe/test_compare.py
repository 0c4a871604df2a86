from __future__ import annotations

import json

import pytest

from omnirl.recipe import registry
from omnirl.recipe.compare import RECORD, differences, recorded
from omnirl.recipe.layers import Setting


def settings(**values):
    return {key.replace("__", "."): Setting(value, f"here:{key}") for key, value in values.items()}


def test_a_pair_is_equal_to_itself_and_to_its_record():
    resolved = registry.resolve("avqa", "ascend910c-x16")
    assert differences(resolved.origins, resolved.origins) == []
    kept = recorded(json.loads(json.dumps(resolved.as_json())))
    assert differences(resolved.origins, kept) == []
    assert kept["rollout.workers"].origin == resolved.origins["rollout.workers"].origin


def test_differences_have_both_values_and_origins():
    a = registry.resolve("gsm8k", "h800x4")
    b = registry.resolve("gsm8k", "h800x4", tune="full", sets=["train.steps = 3"])
    found = {difference.key: difference for difference in differences(a.origins, b.origins)}
    assert found["tune.kind"].as_dict() == {
        "setting": "tune.kind",
        "a": {"value": "lora", "origin": a.origins["tune.kind"].origin},
        "b": {"value": "full", "origin": b.origins["tune.kind"].origin},
    }
    assert found["tune.rank"].b is None
    assert found["train.steps"].a is None
    assert found["train.steps"].b == Setting(3, "--set")
    assert "model.path" not in found
    assert {key.partition(".")[0] for key in found} == {"tune", "optim", "train"}


def test_unset_and_absent_are_the_same():
    assert differences(settings(a=None, b={}), settings(c=None)) == []


def test_open_tables_are_compared_by_key():
    found = differences(settings(o={"x": 1, "y": {"z": 2}}), settings(o__x=1, o__y__z=3, o__w=4))
    assert [difference.key for difference in found] == ["o.y.z", "o.w"]


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), ([1], [True]), (0, False), ("1", 1), ([1, 2], [2, 1])])
def test_types_and_order_count(one, other):
    assert len(differences(settings(a=one), settings(a=other))) == 1


@pytest.mark.parametrize("origins", [None, [], {"a": 3}, {"a.b": {"origin": 4}}])
def test_a_record_that_lost_its_origins(origins):
    assert recorded({"values": {"a": {"b": 1}}, "origins": origins}) == {"a.b": Setting(1, RECORD)}


def test_the_origin_of_a_table_is_that_of_what_is_in_it():
    document = {"values": {"a": {"b": {"c": 1}}}, "origins": {"a.b": {"origin": "f:3", "value": {"c": 1}}}}
    assert recorded(document) == {"a.b.c": Setting(1, "f:3")}
