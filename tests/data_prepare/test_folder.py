"""Names below a folder: what stands in it is found, what leads out of it is refused with its reason."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.data.sources.folder import Folder
from omnirl.errors import InvalidInput


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A data set's folder beside a store; links lead within it, out of it, out and back, nowhere, and to themselves."""
    root = tmp_path / "set"
    (root / "images" / "deep").mkdir(parents=True)
    (root / "images" / "a.png").write_bytes(b"x")
    (tmp_path / "set-store").mkdir()
    (tmp_path / "set-store" / "b.png").write_bytes(b"x")
    (root / "inner").symlink_to("images")
    (root / "images" / "same.png").symlink_to("a.png")
    (root / "outer").symlink_to(tmp_path / "set-store")
    (root / "images" / "leak.png").symlink_to(tmp_path / "set-store" / "b.png")
    (root / "images" / "deep" / "relative.png").symlink_to("../../../set-store/b.png")
    (tmp_path / "set-store" / "back").symlink_to(root / "images")
    (root / "images" / "dangling.png").symlink_to("/nowhere/x.png")
    (root / "images" / "loop.png").symlink_to("loop.png")
    return root


KEPT = ["images/a.png", "images/none.png", "none/none.png", "a.png", "./images//a.png", "inner/a.png", "inner/same.png"]
KEPT += [
    "images/same.png",
    "über/图.png",
    "a b.png",
    " a.png",
    "~/a.png",
    "images/..a",
    "C:/a.png",
    "x" * 255,
    "a:b//c",
]


@pytest.mark.parametrize("name", KEPT, ids=lambda name: name[:20])
@pytest.mark.parametrize("allow_outside", [False, True])
def test_a_name_inside_is_an_absolute_path(name, allow_outside, tree):
    path = Folder(tree, allow_outside=allow_outside).resolve(name)
    assert isinstance(path, Path)
    assert path == tree / name
    assert path.is_absolute()


REFUSED = [
    *((name, "absolute_path") for name in ("/etc/passwd", "//host/share", "/")),
    *(
        (name, "remote_path")
        for name in ("http://x/a.png", "file:///etc/passwd", "S3://b/k", "a+b.c-d://x", "FILE://x")
    ),
    *((name, "invalid_path") for name in ("", " ", "\n\t", "a\0b", "/\0", "\ud800.png", "a\\b", "..\\a", "C:\\a")),
    *((name, "invalid_path") for name in (None, 5, True, b"a.png", ["a.png"], {"a": 1}, Path("a.png"), float("nan"))),
    *(
        (name, "invalid_path")
        for name in ("x" * 256, "图" * 86, "a/" + "y" * 256 + "/b", "a/" * 2048, "x" * 10_000_000)
    ),
]


@pytest.mark.parametrize(("name", "reason"), REFUSED, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("allow_outside", [False, True])
def test_a_name_of_another_kind_has_a_reason(name, reason, allow_outside, tree):
    assert Folder(tree, allow_outside=allow_outside).resolve(name) == reason


OUTSIDE = ["..", "../set-store/b.png", "images/../../set-store/b.png", "../set/images/../../x", "images/deep/../../.."]
OUTSIDE += ["outer/b.png", "outer/none/none.png", "images/leak.png", "inner/leak.png", "images/deep/relative.png"]
OUTSIDE += ["images/dangling.png", "images/deep/../leak.png", "none/../../x.png", "../set-store"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_leads_out_is_refused_unless_it_may(name, tree):
    assert Folder(tree).resolve(name) == "outside_folder"
    allowed = Folder(tree, allow_outside=True).resolve(name)
    assert isinstance(allowed, Path)
    assert ".." not in allowed.parts
    assert os.path.realpath(allowed) == os.path.realpath(tree / name)


def test_the_parent_of_a_linked_folder_is_where_the_system_goes(tree):
    assert Folder(tree).resolve("inner/../images/a.png") == tree / "images" / "a.png"
    assert Folder(tree).resolve("outer/../set/images/a.png") == tree / "images" / "a.png"
    assert Folder(tree).resolve("outer/back/a.png") == tree / "outer" / "back" / "a.png"


def test_a_link_to_itself_is_left_to_whoever_opens_it(tree):
    assert Folder(tree).resolve("images/loop.png") == tree / "images" / "loop.png"


def test_a_root_behind_a_link_is_no_way_out(tree, tmp_path):
    (tmp_path / "alias").symlink_to(tree)
    assert Folder(tmp_path / "alias").resolve("images/a.png") == tmp_path / "alias" / "images" / "a.png"
    assert Folder(tmp_path / "alias").resolve("images/leak.png") == "outside_folder"


def test_a_relative_root_gives_absolute_paths(tree, monkeypatch):
    monkeypatch.chdir(tree.parent)
    assert Folder(Path("set")).resolve("images/a.png") == tree / "images" / "a.png"


def test_a_folder_that_may_not_be_listed_still_has_its_links_looked_at(tree):
    (tree / "images").chmod(0o111)
    try:
        folder = Folder(tree)
        assert folder.resolve("images/a.png") == tree / "images" / "a.png"
        assert folder.resolve("images/leak.png") == "outside_folder"
    finally:
        (tree / "images").chmod(0o755)


def test_a_root_that_no_row_could_name_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="is not UTF-8"):
        Folder(tmp_path / os.fsdecode(b"\xff\xfe"))


ANY_NAME = st.text(st.characters(codec=None, categories=None)) | st.lists(
    st.sampled_from(
        ["..", ".", "", "images", "outer", "inner", "deep", "back", "set", "leak.png", "a.png", "set-store"]
    )
).map("/".join)


@given(name=ANY_NAME)
def test_whatever_the_name_what_comes_out_is_inside(name, tmp_path_factory):
    root = tmp_path_factory.getbasetemp() / "property" / "set"
    if not root.exists():
        (root / "images" / "deep").mkdir(parents=True)
        (root.parent / "set-store").mkdir()
        (root / "outer").symlink_to(root.parent / "set-store")
        (root / "inner").symlink_to("images")
        (root / "images" / "leak.png").symlink_to("../../set-store")
    found = Folder(root).resolve(name)
    for allow_outside in (False, True):
        warm = Folder(root, allow_outside=allow_outside)
        for known in ("a.png", "images/a.png", "outer/a.png", "./a.png", "images//a.png", name):
            warm.resolve(known)
        assert warm.resolve(name) == Folder(root, allow_outside=allow_outside).resolve(name)
    if isinstance(found, str):
        assert found in ("absolute_path", "remote_path", "outside_folder", "invalid_path")
    else:
        assert Path(os.path.realpath(found)).is_relative_to(os.path.realpath(root))


def test_the_system_is_asked_once_for_a_folder(tree):
    """A hundred times as many names take nowhere near a hundred listings of their folder."""
    for number in range(2000):
        (tree / "images" / f"{number}.png").touch()

    def seconds(count: int) -> float:
        folder = Folder(tree)
        start = time.process_time()
        for number in range(count):
            folder.resolve(f"images/{number}.png")
        return time.process_time() - start

    one = min(seconds(1) for _ in range(5))
    assert min(seconds(2000) for _ in range(3)) < 100 * one
