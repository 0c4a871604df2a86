"""What a node is asked before a run, on real files; with a real cluster in tests/engine/test_clusters.py."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from omnirl.engine import checkpoint, nodes
from tests.engine.conftest import python


@pytest.fixture
def wanted(tmp_path: Path, toy_data: Path) -> dict[str, Any]:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(os.urandom(300_000))
    data = [str(toy_data / "train.parquet"), str(toy_data / "validation.parquet")]
    return {"files": data, "data": data, "model": str(model), "runs": str(tmp_path / "a" / "runs")}


def expected(wanted: dict[str, Any]) -> dict[str, Any]:
    mark = nodes.Mark(Path(wanted["runs"]))
    # as a node gets it
    return json.loads(json.dumps(nodes.expectation(wanted, mark)))


def told(expected: dict[str, Any]) -> list[tuple[str, str]]:
    return [(problem["code"], problem["message"]) for problem in nodes.look(expected)]


def test_where_the_run_starts_all_is_well(wanted: dict[str, Any]) -> None:
    found = expected(wanted)
    assert len(found["files"]) == 4
    assert found["decodes"] and len(found["media"]) == found["named"] > 20
    assert told(found) == []


def test_files_that_differ(wanted: dict[str, Any]) -> None:
    found = expected(wanted)
    model = Path(wanted["model"])
    (model / "config.json").unlink()
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert told(found) == [
        ("node-file", f"`{model / 'config.json'}`: no such file or directory"),
        ("node-file", f"`{weights}` has other content than where the run starts"),
    ]
    (model / "config.json").write_text("{}")
    weights.write_bytes(whole[:-1])
    assert told(found) == [("node-file", f"`{weights}` has 299999 bytes, and 300000 where the run starts")]


def test_media_that_are_missing_or_of_another_size(wanted: dict[str, Any], tmp_path: Path) -> None:
    names = [tmp_path / f"{number}.png" for number in range(6)]
    for name in names:
        name.write_bytes(b"x" * 10)
    found = expected(wanted) | {"media": {str(name): 10 for name in names}}
    for name in names[:4]:
        name.unlink()
    names[3].mkdir()
    names[4].write_bytes(b"x")
    shown = ", ".join(f"`{name}`" for name in names[:3])
    assert told(found) == [
        ("node-media", f"4 of 6 media files not there: {shown} and 1 more"),
        ("node-media", f"1 of 6 media files not of the same size: `{names[4]}`"),
    ]
    found["media"] = {"relative.png": 10, "nul\0.png": 10}
    assert told(found)[0][1].startswith("2 of 2 media files not there")


def test_a_folder_of_runs_that_is_another(wanted: dict[str, Any]) -> None:
    found = expected(wanted)
    mark = Path(found["mark"][0])
    mark.write_text("of another machine")
    assert [code for code, _ in told(found)] == ["node-runs"]
    mark.unlink()
    assert f"`{mark.parent}`" in told(found)[0][1]


def test_the_mark_leaves_nothing_behind(tmp_path: Path) -> None:
    runs = tmp_path / "new" / "runs"
    mark = nodes.Mark(runs)
    assert mark.path.read_text() == mark.text
    mark.remove()
    assert list(tmp_path.iterdir()) == []
    mark = nodes.Mark(runs)
    (runs / "one").mkdir()
    mark.remove()
    assert [path.name for path in runs.iterdir()] == ["one"]


def test_packages_and_code(wanted: dict[str, Any]) -> None:
    found = expected(wanted)
    found["packages"]["torch"] = "0.0.1"
    found["packages"]["no-such-package"] = "1.0"
    found["packages"]["absent-here-too"] = None
    found["python"] = "2.7"
    found["code"] = "other"
    codes = [code for code, _ in told(found)]
    assert codes == ["node-python", "node-packages", "node-packages", "node-code"]
    assert ("node-packages", "no no-such-package, and 1.0 where the run starts") in told(found)


def test_a_package_that_is_not_pyav(tmp_path: Path) -> None:
    (tmp_path / "av.py").write_text("")
    script = """
import json, sys
sys.path.insert(0, sys.argv[1])
from omnirl.engine import nodes
print(json.dumps(list(nodes._decoder())))
"""
    (problem,) = python(script, tmp_path)
    assert problem["code"] == "node-decoder"
    assert str(tmp_path / "av.py") in problem["message"]


@pytest.mark.parametrize(("count", "most"), [(0, 5), (5, 5), (7, 5), (1000, 7)])
def test_a_sample_is_spread_evenly(count: int, most: int) -> None:
    names = [str(number) for number in range(count)]
    chosen = nodes._spread(names, most)
    assert len(chosen) == len(set(chosen)) == min(count, most)
    gaps = {int(b) - int(a) for a, b in itertools.pairwise(chosen)}
    assert max(gaps, default=1) - min(gaps, default=1) <= 1


def test_a_bounded_sample_of_media(wanted: dict[str, Any]) -> None:
    found = expected(wanted | {"most_media": 5})
    assert len(found["media"]) == 5 < found["named"]


def test_a_checkpoint_is_a_folder_or_what_the_cache_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkpoint.folder(str(tmp_path)) == tmp_path.resolve()
    assert checkpoint.folder("/not/there") == Path("/not/there")
    snapshot = tmp_path / "models--org--model" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--org--model" / "refs").mkdir()
    (tmp_path / "models--org--model" / "refs" / "main").write_text("a" * 40)
    script = """
import json, sys
from omnirl.engine import checkpoint
try:
    print(json.dumps(str(checkpoint.folder(sys.argv[1]))))
except OSError as error:
    print(json.dumps(error.strerror))
"""
    env = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    assert python(script, "org/model", **env) == str(snapshot)
    for name in ("org/other", "a/b/c"):
        assert python(script, name, **env) == f"there is neither a folder nor a downloaded checkpoint `{name}`"


def test_an_address_that_is_no_rays(tmp_path: Path) -> None:
    import socket
    import subprocess

    with socket.create_server(("127.0.0.1", 0)) as server:
        request = tmp_path / "request.json"
        address = f"127.0.0.1:{server.getsockname()[1]}"
        request.write_text(json.dumps({"address": address, "join_s": 2.0, "needs": {}}))
        done = subprocess.run(
            [sys.executable, "-m", "omnirl.engine.nodes", str(request)], capture_output=True, text=True, timeout=60
        )
    assert json.loads(done.stdout.splitlines()[-1]) == {"fault": "it did not answer within 2 s", "silent": True}
