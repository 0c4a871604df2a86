"""The judge of media: takes questions about files and inline pictures, answers each once, in threads and processes."""

from __future__ import annotations

import importlib.util
import os
import stat
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from omnirl.data.media.cache import Cache
from omnirl.data.media.pool import Workers
from omnirl.data.media.programs import Overrun, Programs, lacking
from omnirl.data.media.rules import Verdict, decide
from omnirl.data.sample import Kind
from omnirl.errors import EnvironmentLacks

MOST_INLINE_BYTES = 64 << 20
"""Encoded pictures that wait to be looked at, together; `ask` waits while there are more."""

_NOUN = {"image": "image", "audio": "audio", "video": "video", "soundtrack": "video"}


class Judge:
    """Says of media whether they can be trained on. A context manager; `ask` may be called from many threads.

    Pictures are decoded by Pillow. For audio and video, the programs ffprobe and ffmpeg have the last word: PyAV, in
    worker processes, accepts what is plainly usable at a fraction of their cost, and hands them the rest.

    Args:
        cache: a JSON Lines file that keeps verdicts on files over runs; None keeps none.
        probe: `ffmpeg` uses the programs alone; `auto` PyAV first. Where only one of them is installed, it decides.
        verify: False looks at files with `stat` alone, and at inline pictures not at all.
        workers: how many media are looked at at a time; by default one a core.
        timeout_s: deadline of one look by a worker, and of each run of a program.

    Raises:
        EnvironmentLacks: `probe="ffmpeg"` without the programs; a cache that cannot be written.
    """

    def __init__(
        self,
        *,
        cache: Path | None = None,
        probe: Literal["auto", "ffmpeg"] = "auto",
        verify: bool = True,
        workers: int | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        self._probe = probe
        self._verify = verify
        self._timeout_s = timeout_s
        self._programs = Programs(timeout_s) if probe == "ffmpeg" and verify else None
        self._workers: Workers | None = None
        self._ready: set[str] = set()
        self._cache = Cache(cache) if cache is not None and verify else None
        self._threads = ThreadPoolExecutor(workers or len(os.sched_getaffinity(0)), thread_name_prefix="media")
        self._change = threading.Condition()
        self._answers: dict[tuple[Kind, str], Future[Verdict] | Verdict] = {}
        self._found: dict[str, tuple[int, int]] = {}
        self._inline_bytes = 0
        self._probed = 0
        self._closed = False

    @property
    def probed(self) -> int:
        """How many media were opened and decoded, inline pictures included; answers from the cache do not count."""
        return self._probed

    @property
    def found(self) -> Mapping[str, tuple[int, int]]:
        """Bytes and modification time (ns) of each file, by its path, as they were when it was asked about."""
        return self._found

    @property
    def workers(self) -> Workers | None:
        """The processes that look at files with PyAV, once there are any."""
        return self._workers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop. Questions that wait are cancelled, and what is under way is killed."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for part in (self._programs, self._workers):
            if part is not None:
                part.close()
        self._threads.shutdown()
        if self._cache is not None:
            self._cache.close()

    def ask(self, kind: Kind, content: Path | bytes) -> Future[Verdict]:
        """Judge a file, or the encoded bytes of a picture.

        A file is looked at once for each kind, however often it is asked about. Waits while too many inline pictures
        are in hand, so it must not be called from a callback of a future.

        Raises:
            EnvironmentLacks: what is needed to look at this kind is not installed.
        """
        answer = self.answer(kind, content if isinstance(content, bytes) else str(content))
        if isinstance(answer, Future):
            return answer
        known: Future[Verdict] = Future()
        known.set_result(answer)
        return known

    def answer(self, kind: Kind, content: str | bytes) -> Verdict | Future[Verdict]:
        """As `ask`, but a verdict that needs no look inside is returned as it is."""
        if isinstance(content, bytes):
            return self._ask_inline(content)
        key = (kind, content if content[:1] == "/" else str(Path(content).absolute()))
        answer = self._answers.get(key) or self._answer_at_sight(key)
        if answer is not None:
            return answer
        with self._change:
            answer = self._answers.get(key)
            if answer is not None:
                return answer
            self._prepare(kind)
            answer = self._answers[key] = self._threads.submit(self._look, *key, *self._found[key[1]])
        answer.add_done_callback(lambda done: self._keep(key, done))
        return answer

    def _ask_inline(self, data: bytes) -> Verdict | Future[Verdict]:
        if not data:
            return Verdict("empty_image", {})
        if not self._verify:
            return Verdict("", {"size_bytes": len(data)})
        self._prepare("image")
        with self._change:
            self._change.wait_for(lambda: not self._inline_bytes or self._inline_bytes + len(data) <= MOST_INLINE_BYTES)
            self._inline_bytes += len(data)
        return self._threads.submit(self._look_inline, data)

    def _look_inline(self, data: bytes) -> Verdict:
        from omnirl.data.media.images import look

        try:
            return look(data)
        finally:
            with self._change:
                self._inline_bytes -= len(data)
                self._probed += 1
                self._change.notify_all()

    def _answer_at_sight(self, key: tuple[Kind, str]) -> Verdict | None:
        """What can be said of a file unopened; None for what must be looked at."""
        kind, path = key
        try:
            found = os.stat(path)  # noqa: PTH116 -- making a Path takes longer than the look
        except (OSError, ValueError):
            verdict = Verdict(f"missing_{_NOUN[kind]}", {})
        else:
            size_bytes, mtime_ns = self._found[path] = found.st_size, found.st_mtime_ns
            if not stat.S_ISREG(found.st_mode):
                verdict = Verdict("not_a_file", {})
            elif not size_bytes:
                verdict = Verdict(f"empty_{_NOUN[kind]}", {})
            elif not self._verify:
                verdict = Verdict("", {"size_bytes": size_bytes})
            else:
                cached = None if self._cache is None else self._cache.get(kind, path, size_bytes, mtime_ns)
                if cached is None:
                    return None
                verdict = cached
        self._answers[key] = verdict
        return verdict

    def _look(self, kind: Kind, path: str, size_bytes: int, mtime_ns: int) -> Verdict:
        from omnirl.data.media.images import look

        verdict = look(Path(path)) if kind == "image" else self._look_at_media(kind, Path(path), size_bytes)
        if self._closed:
            # What was killed says nothing about the file.
            raise CancelledError
        with self._change:
            self._probed += 1
        # The machine may have been busy: another run asks again.
        if self._cache is not None and verdict.reason != "probe_timeout":
            self._cache.put(kind, path, size_bytes, mtime_ns, verdict)
        return verdict

    def _look_at_media(self, kind: Kind, path: Path, size_bytes: int) -> Verdict:
        lost = Verdict("undecodable_audio" if kind == "audio" else "undecodable_video", {})
        if self._workers is not None:
            answer = self._workers.ask(kind, path, size_bytes)
            if answer.verdict is not None and (answer.sure or self._programs is None):
                return answer.verdict
            if self._programs is None:
                return Verdict("probe_timeout", {}) if answer.late else lost
        if self._programs is None:
            raise EnvironmentLacks("neither PyAV nor ffmpeg is installed")
        try:
            found = self._programs.look(path, kind)
        except Overrun:
            return Verdict("probe_timeout", {})
        except OSError:
            return lost
        return decide(kind, found, size_bytes)

    def _prepare(self, kind: Kind) -> None:
        """Find what looks at this kind; raises EnvironmentLacks where there is nothing."""
        medium = "image" if kind == "image" else "stream"
        if medium in self._ready:
            return
        if medium == "image":
            if importlib.util.find_spec("PIL") is None:
                raise EnvironmentLacks("looking at images needs Pillow", hint="pip install pillow")
        elif self._probe == "auto":
            here = importlib.util.find_spec("av") is not None
            if not here and lacking():
                raise EnvironmentLacks(
                    "looking at audio and video needs PyAV, or the programs ffprobe and ffmpeg", hint="pip install av"
                )
            self._programs = None if lacking() else Programs(self._timeout_s, suspicious=here)
            self._workers = Workers(self._timeout_s, thorough=self._programs is None) if here else None
        self._ready.add(medium)

    def _keep(self, key: tuple[Kind, str], done: Future[Verdict]) -> None:
        """Let go of a future, and keep its verdict alone."""
        if not done.cancelled() and done.exception() is None:
            with self._change:
                self._answers[key] = done.result()
