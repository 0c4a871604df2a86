"""Parquet files: whole or absent, read back, with named faults."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omnirl.data import store
from omnirl.data.sample import Image, Video, schema
from omnirl.errors import EnvironmentLacks, InvalidInput


def listed(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_rows_come_back_as_they_were(tmp_path, sample):
    media = sample(
        1,
        prompt="<image><image><audio><video>what?",
        system="be brief",
        images=(Image(data=b"\x89PNG"), Image(path=tmp_path / "a.png")),
        audios=(tmp_path / "a.wav",),
        videos=(Video(tmp_path / "a.mp4", fps=1.0, min_pixels=1, max_pixels=2, max_frames=3),),
        options=("A", "None"),
        details='{"x": 1}',
    )
    path = tmp_path / "rows.parquet"
    written = store.write_parquet(path, [sample(0), media])
    assert (written.rows, written.bytes) == (2, path.stat().st_size)
    assert written.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert list(store.read_rows(path)) == [sample(0).to_row(), media.to_row()]
    assert listed(tmp_path) == ["rows.parquet"]
    facts = store.inspect(path)
    assert (facts.rows, facts.columns) == (2, tuple(schema().names))


def test_files_without_media_concatenate_with_files_that_have_them(tmp_path, sample):
    store.write_parquet(tmp_path / "text.parquet", [sample(0)])
    store.write_parquet(tmp_path / "image.parquet", [sample(1, images=(Image(data=b"x"),))])
    tables = [pq.read_table(tmp_path / name) for name in ("text.parquet", "image.parquet")]
    assert pa.concat_tables(tables).num_rows == 2


def test_row_groups_are_bounded_by_bytes_and_have_no_dictionary(tmp_path, sample):
    rows = (sample(index, images=(Image(data=os.urandom(10_000)),)) for index in range(50))
    store.write_parquet(tmp_path / "rows.parquet", rows, max_group_bytes=100_000)
    metadata = pq.ParquetFile(tmp_path / "rows.parquet").metadata
    assert metadata.num_rows == 50
    assert metadata.num_row_groups > 5
    for group in range(metadata.num_row_groups):
        columns = [metadata.row_group(group).column(at) for at in range(metadata.num_columns)]
        assert not any("DICTIONARY" in encoding for column in columns for encoding in column.encodings)
        assert metadata.row_group(group).total_byte_size < 200_000


def test_the_same_rows_give_the_same_bytes(tmp_path, sample):
    first = store.write_parquet(tmp_path / "a.parquet", [sample(n) for n in range(9)])
    assert store.write_parquet(tmp_path / "b.parquet", [sample(n) for n in range(9)]).sha256 == first.sha256


@pytest.mark.parametrize("fields", [{"question": "\ud83d"}, {"index": 2**70}, {"ability": 5}, {"id": b"\xff"}], ids=str)
def test_a_row_that_does_not_fit_is_named_and_nothing_stays(fields, tmp_path, sample):
    with pytest.raises(InvalidInput, match="row 2 does not fit"):
        store.write_parquet(tmp_path / "rows.parquet", [sample(0), sample(1), replace(sample(2), **fields)])
    assert listed(tmp_path) == []


def test_a_failing_stream_leaves_the_older_file(tmp_path, sample):
    path = tmp_path / "rows.parquet"
    store.write_parquet(path, [sample(0)])

    def stream():
        yield sample(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write_parquet(path, stream())
    assert listed(tmp_path) == ["rows.parquet"]
    assert store.inspect(path).rows == 1


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"{}" * 40, "does not begin like one"),
        (b"PAR1", "not a readable"),
        (b"PAR1" * 9, "not a readable"),
    ],
)
def test_what_is_no_parquet_is_named(content, why, tmp_path):
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=why):
        store.inspect(path)


def test_every_cut_of_a_file_is_named(tmp_path, sample):
    path = tmp_path / "rows.parquet"
    store.write_parquet(path, [sample(n) for n in range(3)])
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidInput, match=r"half-written|it is empty"):
            store.inspect(path)


def test_a_damaged_page_is_named(tmp_path, sample):
    path = tmp_path / "rows.parquet"
    store.write_parquet(path, [sample(n) for n in range(200)])
    damaged = bytearray(path.read_bytes())
    damaged[4:400] = b"\xff" * 396
    path.write_bytes(damaged)
    with pytest.raises(InvalidInput, match="not a readable parquet"):
        list(store.read_rows(path))


def test_missing_files_folders_columns_and_rows_are_named(tmp_path, sample):
    store.write_parquet(tmp_path / "train.parquet", [sample(0)])
    with pytest.raises(InvalidInput, match="no such file") as caught:
        store.inspect(tmp_path / "trian.parquet")
    assert "`train.parquet`" in caught.value.hint
    with pytest.raises(InvalidInput, match="no such file") as caught:
        store.inspect(tmp_path / "nowhere" / "x.parquet")
    assert "does not exist either" in caught.value.hint
    with pytest.raises(InvalidInput, match="is a folder"):
        store.inspect(tmp_path)
    pq.write_table(pa.table({"prompt": ["x"], "text": ["y"]}), tmp_path / "other.parquet")
    with pytest.raises(InvalidInput, match="lacks the columns `data_source`, `reward_model`"):
        store.inspect(tmp_path / "other.parquet")
    store.write_parquet(tmp_path / "none.parquet", [])
    with pytest.raises(InvalidInput, match="has no rows"):
        store.inspect(tmp_path / "none.parquet")


def test_places_that_cannot_be_written_are_named(tmp_path, sample):
    (tmp_path / "file").write_text("x")
    with pytest.raises(EnvironmentLacks, match="cannot be written"):
        store.write_parquet(tmp_path / "file" / "rows.parquet", [sample(0)])
    with pytest.raises(EnvironmentLacks, match="cannot be written"):
        store.write_parquet(tmp_path / "nowhere" / "rows.parquet", [sample(0)])
    (tmp_path / "taken.parquet").mkdir()
    with pytest.raises(EnvironmentLacks, match="cannot be written"):
        store.write_parquet(tmp_path / "taken.parquet", [sample(0)])
    assert listed(tmp_path) == ["file", "taken.parquet"]


WRITE_MUCH = """
    import os, sys
    from pathlib import Path
    from omnirl.data import store
    from omnirl.data.sample import Image, Sample
    from omnirl.errors import OmniError

    def rows():
        for n in range(400):
            yield Sample("d", "p", "1", "a", "train", n, "q", images=(Image(data=os.urandom(10_000)),))

    try:
        store.write_parquet(Path(sys.argv[1]) / "rows.parquet", rows(), max_group_bytes=200_000)
    except OmniError as error:
        print(int(error.exit), error.message, "|", error.hint)
"""


def write_much(folder: Path, **options) -> subprocess.CompletedProcess[str]:
    code = textwrap.dedent(WRITE_MUCH)
    return subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=60, **options
    )


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path):
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system; the file-size limit test covers the same path")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this machine may not mount a tmpfs: {mounted.stderr.strip()}")
    try:
        done = write_much(disk)
        assert done.stdout.startswith(f"4 no space left to write `{disk}/rows.parquet`")
        assert f"`df -h {disk}`" in done.stdout
        assert done.stderr == ""
        assert listed(disk) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_file_size_limit_is_named_and_leaves_nothing(tmp_path):
    done = write_much(tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
    assert done.stdout.startswith("4 ")
    assert "larger than this process may write" in done.stdout
    assert done.stderr == ""
    assert listed(tmp_path) == []


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path, sample):
    code = """
        import sys, time
        from pathlib import Path
        from omnirl.data import store
        from omnirl.data.sample import Sample
        def rows():
            yield Sample("d", "p", "1", "a", "train", 0, "q")
            print("writing", flush=True)
            time.sleep(60)
        store.write_parquet(Path(sys.argv[1]) / "rows.parquet", rows())
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "writing\n"
    store.write_parquet(tmp_path / "rows.parquet", [sample(0)])
    assert len(listed(tmp_path)) == 2, "another writer's file is left alone while it lives"
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=10)
    child.stdout.close()
    time.sleep(0.05)
    store.write_parquet(tmp_path / "rows.parquet", [sample(0)])
    assert listed(tmp_path) == ["rows.parquet"]
