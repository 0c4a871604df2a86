"""Parquet files on disk: written whole or not at all, read back before they count, named faults when unreadable."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnirl.data import arrays
from omnirl.data.sample import REQUIRED_COLUMNS, Row, schema
from omnirl.errors import EnvironmentLacks, InvalidInput
from omnirl.files import disk_faults

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_BYTES = 16 << 20
"""Bound of one row group: far below the 2 GiB of Arrow's 32-bit offsets, and what a reader must hold at once."""
_READ_AHEAD_BYTES = 1 << 20
"""Column chunks are read in pieces of this size; otherwise a row group is held whole, however small the batches."""


@dataclass(frozen=True, slots=True)
class Written:
    """A finished file."""

    path: Path
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What a readable parquet file holds."""

    path: Path
    rows: int
    bytes: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Staged:
    """A complete, verified file that does not have its name yet."""

    temporary: Path
    written: Written

    def commit(self) -> Written:
        """Give the file its name, replacing an older one in one step."""
        with disk_faults(self.written.path):
            try:
                self.temporary.replace(self.written.path)
            except OSError:
                self.discard()
                raise
            _sync(self.written.path.parent)
        return self.written

    def discard(self) -> None:
        self.temporary.unlink(missing_ok=True)


def write_parquet(path: Path, samples: Iterable[Row], *, max_group_bytes: int = GROUP_BYTES) -> Written:
    """Write `samples` to `path` by way of a temporary file beside it.

    Raises:
        InvalidInput: a sample does not fit the schema.
        EnvironmentLacks: no room, no permission, or `path` cannot be a file.
    """
    return stage_parquet(path, samples, max_group_bytes=max_group_bytes).commit()


def stage_parquet(path: Path, samples: Iterable[Row], *, max_group_bytes: int = GROUP_BYTES) -> Staged:
    """As `write_parquet`, but leaves naming the file to the caller; whatever goes wrong, no temporary file stays."""
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.partial")
    with disk_faults(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        _remove_abandoned(path)
        try:
            rows, declared = _write(temporary, samples, max_group_bytes)
            with ThreadPoolExecutor(1) as beside:
                digesting = beside.submit(_sha256, temporary)
                _read_back(temporary, path, rows, declared)
                digest = digesting.result()
            return Staged(temporary, Written(path, rows, temporary.stat().st_size, digest))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def inspect(path: Path, *, required: Sequence[str] = REQUIRED_COLUMNS) -> Facts:
    """Rows and columns of a parquet file that has the `required` columns and at least one row.

    Raises InvalidInput that names the fault: no such file, a folder, not a parquet, half-written, no rows, columns.
    """
    import pyarrow.parquet as pq

    if not path.exists():
        raise InvalidInput(f"no such file: `{path}`", hint=_nearest_file(path))
    if path.is_dir():
        raise InvalidInput(f"`{path}` is a folder, not a parquet file", hint=_parquet_files(path))
    with _named_faults(path), pq.ParquetFile(path) as file:
        facts = Facts(path, file.metadata.num_rows, path.stat().st_size, tuple(file.schema_arrow.names))
    missing = [name for name in required if name not in facts.columns]
    if missing:
        raise InvalidInput(
            f"`{path}` lacks the column{'s' if len(missing) > 1 else ''} {', '.join(f'`{name}`' for name in missing)}",
            hint=f"it has {', '.join(facts.columns) or 'none'}; write it with `omnirl data prepare`",
        )
    if facts.rows == 0:
        raise InvalidInput(f"`{path}` has no rows", hint="convert the data again with `omnirl data prepare`")
    return facts


def read_batches(
    path: Path, columns: Sequence[str] | None = None, *, batch_rows: int = 4096
) -> Iterator[pa.RecordBatch]:
    """The file in record batches; `columns` may name leaves such as `images.list.element.path`.

    Raises InvalidInput when a page cannot be decoded.
    """
    import pyarrow.parquet as pq

    with _named_faults(path), pq.ParquetFile(path, pre_buffer=False, buffer_size=_READ_AHEAD_BYTES) as file:
        names = None if columns is None else list(columns)
        yield from file.iter_batches(batch_size=batch_rows, columns=names, use_threads=False)


def leaf_paths(path: Path) -> list[str]:
    """The file's leaf columns, such as `images.list.element.path`; writers differ in the middle parts."""
    import pyarrow.parquet as pq

    with _named_faults(path), pq.ParquetFile(path) as file:
        return [file.schema.column(leaf).path for leaf in range(len(file.schema))]


def read_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a file as dictionaries, one batch in memory at a time."""
    for batch in read_batches(path, columns, batch_rows=256):
        yield from batch.to_pylist()


def _write(temporary: Path, samples: Iterable[Row], max_group_bytes: int) -> tuple[int, pa.Schema]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    groups = _groups(samples, max_group_bytes)
    total = 0
    with pa.OSFile(str(temporary), "wb") as file:
        group = next(groups, [])
        declared = group[0].schema() if group else schema()
        leaves = _leaves(declared)
        inline = {leaf for leaf in leaves if leaf.endswith(".bytes")}
        # Dictionary pages of nested columns are what some Arrow readers stumble over, hence none. Encoded pictures
        # neither shrink nor have a least and a greatest worth writing down.
        writer = pq.ParquetWriter(
            file,
            declared,
            use_dictionary=False,
            compression={leaf: "NONE" if leaf in inline else "SNAPPY" for leaf in leaves},
            write_statistics=[leaf for leaf in leaves if leaf not in inline],
        )
        try:
            while group:
                writer.write_table(_table(group, total, declared))
                total += len(group)
                group = next(groups, [])
            writer.close()
        finally:
            # A writer that failed would try again to write its footer when it is collected, and complain on stderr.
            writer.is_open = False
    _sync(temporary)
    return total, declared


def _groups(samples: Iterable[Row], max_group_bytes: int) -> Iterator[list[Row]]:
    group: list[Row] = []
    held = 0
    for sample in samples:
        size = sample.size_bytes()
        if group and held + size > max_group_bytes:
            yield group
            group, held = [], 0
        group.append(sample)
        held += size
    if group:
        yield group


def _leaves(declared: pa.Schema) -> list[str]:
    """The parquet paths of a schema's leaf columns, such as `images.list.element.bytes`."""
    import pyarrow as pa

    def below(path: str, kind: pa.DataType) -> Iterator[str]:
        if pa.types.is_list(kind):
            yield from below(f"{path}.list.element", kind.value_type)
        elif pa.types.is_struct(kind):
            for at in range(kind.num_fields):
                yield from below(f"{path}.{kind.field(at).name}", kind.field(at).type)
        else:
            yield path

    return [leaf for field in declared for leaf in below(field.name, field.type)]


def _table(group: list[Row], first_row: int, declared: pa.Schema) -> pa.Table:
    faults = (UnicodeError, OverflowError, TypeError, ValueError)
    try:
        return arrays.table([sample.to_row() for sample in group], declared)
    except faults as error:
        for number, sample in enumerate(group, start=first_row):
            try:
                arrays.table([sample.to_row()], declared)
            except faults as single:
                raise InvalidInput(f"row {number} does not fit the row schema: {single}") from single
        raise InvalidInput(f"rows from {first_row} on do not fit the row schema: {error}") from error


def _read_back(temporary: Path, path: Path, rows: int, declared: pa.Schema) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # through a memory map, so that pages of pictures are checked where they lie
        with pq.ParquetFile(temporary, memory_map=True) as file:
            groups = range(file.metadata.num_row_groups)
            read = sum(file.read_row_group(group, use_threads=False).num_rows for group in groups)
            found = file.schema_arrow
            same = found.equals(declared) and found.metadata == declared.metadata
    except (pa.ArrowException, OSError) as error:
        raise EnvironmentLacks(
            f"`{path}` does not read back after writing: {error}", hint="check the disk, then convert again"
        ) from error
    if read != rows or not same:
        raise EnvironmentLacks(
            f"`{path}` reads back with {read} of {rows} rows{'' if same else ' and another schema'}",
            hint="check the disk and the installed pyarrow, then convert again",
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_abandoned(path: Path) -> None:
    """Remove what conversions on this machine left that were killed before they could tidy up."""
    prefix = f".{path.name}.{socket.gethostname()}."
    for leftover in path.parent.glob(f"{prefix}*.partial"):
        owner = leftover.name.removeprefix(prefix).removesuffix(".partial")
        if (
            owner.isdecimal()
            and int(owner) != os.getpid()
            and not Path("/proc", owner).exists()
            and Path("/proc").exists()
        ):
            leftover.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Have the system write down a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _named_faults(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except PermissionError as error:
        raise EnvironmentLacks(f"not allowed to read `{path}`", hint=f"`ls -l {path}` shows who may") from error
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(
            f"`{path}` is not a readable parquet file: {_why(path, error)}",
            hint="write it again with `omnirl data prepare`",
        ) from error


def _why(path: Path, error: Exception) -> str:
    size = path.stat().st_size
    if size == 0:
        return "it is empty"
    with path.open("rb") as file:
        start = file.read(4)
        file.seek(max(size - 4, 0))
        end = file.read(4)
    if start != b"PAR1":
        return "it does not begin like one"
    if end != b"PAR1":
        return "its end is missing, so it was half-written or cut short"
    return " ".join(str(error).split())[:200]


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"the folder `{path.parent}` does not exist either; `omnirl data prepare` makes such files"
    names = sorted(entry.name for entry in path.parent.iterdir() if entry.suffix == ".parquet")
    near = get_close_matches(path.name, names, n=3) or names[:3]
    if near:
        return f"`{path.parent}` has {', '.join(f'`{name}`' for name in near)}"
    return "`omnirl data prepare` makes such files"


def _parquet_files(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir() if entry.suffix == ".parquet")[:3]
    return f"name one of its files: {', '.join(f'`{name}`' for name in names)}" if names else "it holds no parquet file"
