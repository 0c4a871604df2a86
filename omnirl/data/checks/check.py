"""Looking through data files before anything is trained on them: every row, and what they come to with a recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnirl.data import store
from omnirl.data.checks import columns, faults
from omnirl.data.checks.duplicates import Index
from omnirl.data.checks.findings import Finding, Findings
from omnirl.data.checks.items import Items
from omnirl.data.checks.labels import Labels, of_row
from omnirl.data.checks.lengths import Counting, Distribution, Length
from omnirl.data.sample import PLACEHOLDERS
from omnirl.errors import InvalidInput, OmniError

if TYPE_CHECKING:
    from omnirl.recipe.model import Recipe

SCHEMA = "omnirl/data-check/1"
_READ = (
    *("data_source", "prompt", "images", "audios", "videos", "reward_model", "extra_info"),
    *("chosen", "rejected", "win_score", "lose_score"),
)
_UNCOUNTABLE = ("placeholders", "media-", "image-", "prompt-")
"""How the codes begin of what also keeps a row's tokens from being counted."""
_MOST_SOURCES = 50
_STEP = 64

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], object]]]


@dataclass(slots=True)
class Target:
    """One file: how it was named, its rows, the numbers of those to look at (None: all), and its part in the recipe."""

    name: str
    path: Path
    part: str = ""
    rows: int = 0
    chosen: Sequence[int] | None = None
    preference: bool = False
    read: tuple[str, ...] = ()
    over: int = 0
    faulty: bytearray = field(default_factory=bytearray)
    """For each row whether something was found because of which its tokens cannot be counted either."""

    @property
    def looked_at(self) -> int:
        return self.rows if self.chosen is None else len(self.chosen)


@dataclass(slots=True)
class Report:
    """What a check found. `lengths`, `duplicates` and `steps` are None where they were not looked at."""

    targets: list[Target] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    scorers: dict[str, str | None] = field(default_factory=dict)
    guessed: bool = True
    """Whether scorers were guessed from each row's `data_source`."""
    lengths: dict[str, Any] | None = None
    duplicates: dict[str, int] | None = None
    steps: dict[str, Any] | None = None

    @property
    def errors(self) -> int:
        return self.findings.total("error")

    def as_dict(self) -> dict[str, Any]:
        """The document `omnirl/data-check/1`."""
        return {
            "schema": SCHEMA,
            "rows": sum(target.rows for target in self.targets),
            "checked": sum(target.looked_at for target in self.targets),
            "errors": self.errors,
            "warnings": self.findings.total("warning"),
            "files": [
                {
                    "path": target.name,
                    "part": target.part or None,
                    "rows": target.rows,
                    "checked": target.looked_at,
                    "kind": "preference" if target.preference else "row",
                }
                for target in self.targets
            ],
            "scorers": {"guessed": self.guessed, "by_data_source": self.scorers},
            "counts": dict(self.findings.counts),
            "problems": [finding.as_dict() for finding in self.findings.listed()],
            "lengths": self.lengths,
            "duplicates": self.duplicates,
            "steps": self.steps,
        }


def check(
    files: Sequence[str],
    *,
    recipe: Recipe | None = None,
    model: str | None = None,
    count_tokens: bool = True,
    sample: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check data files; with a recipe also against what it asks for.

    Args:
        files: parquet files; those of the recipe when empty.
        recipe: brings the scorer, the token budget, the model and the size of a step.
        model: the checkpoint whose tokenizer counts, instead of the recipe's.
        count_tokens: whether prompt lengths are looked at, which takes seconds to start.
        sample: look at this many evenly spread rows of each file only; duplicates are then not looked for.
        progress: opens a display, given a description and a total.

    Raises:
        InvalidInput: a file that is not there.
    """
    show = progress or (lambda _description, _total: nullcontext(lambda _n: None))
    report = Report(guessed=recipe is None)
    _add_targets(report, files, recipe, sample)
    model = (model or (recipe.model.path if recipe else None)) if count_tokens else None
    with ExitStack() as stack:
        counting = _start_counting(report, recipe, model, stack) if model and report.targets else None
        index = stack.enter_context(Index()) if sample is None else None
        with show("checking rows", sum(target.looked_at for target in report.targets)) as advance:
            labels = _check_rows(report, recipe, index, advance)
        if labels.uses:
            with show("reading labels", len(labels.uses)) as advance:
                labels.audit(report.findings, recipe.reward.options if recipe else {}, advance)
        if index is not None:
            _check_twins(report, index, _others(report, recipe))
        if counting is not None:
            with show("counting tokens", sum(target.looked_at for target in report.targets)) as advance:
                _check_lengths(report, recipe, counting, str(model), advance)
    if recipe is not None:
        from omnirl.data.checks import steps

        report.steps = steps.steps(report, recipe)
    return report


def parts(recipe: Recipe | None) -> dict[Path, str]:
    """The files of a recipe with their part in it."""
    return {Path(name).expanduser().resolve(): part for name, part in _named(recipe)}


def _named(recipe: Recipe | None) -> Iterator[tuple[str, str]]:
    if recipe is not None:
        for part, names in (("probe", recipe.data.probe), ("val", recipe.data.val), ("train", recipe.data.train)):
            yield from ((name, part) for name in names)


def _part(path: Path, recipe: Recipe | None) -> str:
    """The part of a file in the recipe, or of the recipe's file of the same name where only the folder differs."""
    by_name = {Path(name).name: part for name, part in _named(recipe)}
    return parts(recipe).get(path.resolve()) or by_name.get(path.name, "")


def _add_targets(report: Report, files: Sequence[str], recipe: Recipe | None, sample: int | None) -> None:
    names = list(files) or ([*recipe.data.train, *recipe.data.val, *recipe.data.probe] if recipe else [])
    seen: set[Path] = set()
    for name in names:
        path = Path(name).expanduser()
        if path.resolve() in seen:
            continue
        seen.add(path.resolve())
        try:
            facts = store.inspect(path, required=())
        except InvalidInput as error:
            if not path.is_file():
                raise
            report.findings.add(Finding("file-unreadable", error.message, name, None, error.hint))
            continue
        target = Target(name, path, _part(path, recipe), facts.rows, faulty=bytearray(facts.rows))
        target.preference = columns.is_preference(facts.columns)
        target.chosen = _spread(facts.rows, sample) if sample is not None and sample < facts.rows else None
        wrong = columns.misfits(path)
        for column, message in wrong.items():
            code = "column-missing" if column not in facts.columns else "column-type"
            report.findings.add(Finding(code, message, name, None, columns.HINT))
        if recipe is not None and target.preference != (recipe.task.rows == "preferences"):
            said = f"the file holds {'preferences' if target.preference else 'questions'}, not {recipe.task.rows}"
            report.findings.add(Finding("wrong-kind", said, name, None, "`task.rows` says what the recipe trains on"))
        target.read = tuple(column for column in _READ if column in facts.columns and column not in wrong)
        report.targets.append(target)


def _spread(rows: int, count: int) -> list[int]:
    """`count` row numbers, evenly spread from the first to the last."""
    return sorted({round(at * (rows - 1) / max(count - 1, 1)) for at in range(count)})


def _check_rows(report: Report, recipe: Recipe | None, index: Index | None, advance: Callable[[int], object]) -> Labels:
    """Look at every row; returns the labels that are to be read by math-verify."""
    labels = Labels()
    items = Items()
    undeclared: set[tuple[int, str]] = set()
    for number, target in enumerate(report.targets):
        items.recorded_beside(target.path)
        done = 0
        try:
            for row, values in columns.read_rows(target.path, target.read, target.chosen):
                for fault in _row_faults(report, target, values, recipe, items):
                    finding = Finding(fault.code, fault.message, target.name, row, fault.hint)
                    report.findings.add(finding)
                    target.faulty[row] |= fault.code.startswith(_UNCOUNTABLE)
                if "reward_model" in target.read and not target.preference:
                    scorer = report.scorers.get(str(values.get("data_source")))
                    labels.add(scorer, of_row(values), target.name, row)
                for column in _undeclared(values, recipe):
                    if (number, column) not in undeclared:
                        undeclared.add((number, column))
                        said = f"rows carry `{column}`, which the task does not declare"
                        report.findings.add(Finding("modality-undeclared", said, target.name, row, "task.modalities"))
                if index is not None and "prompt" in target.read:
                    index.add(number, row, values)
                done += 1
                if done % _STEP == 0:
                    advance(_STEP)
        except InvalidInput as error:
            report.findings.add(Finding("file-unreadable", error.message, target.name, None, error.hint))
        advance(done % _STEP)
    return labels


def _row_faults(
    report: Report, target: Target, values: Mapping[str, Any], recipe: Recipe | None, items: Items
) -> Iterator[faults.Fault]:
    if "prompt" in target.read:
        yield from faults.prompt(values)
    if target.preference:
        yield from faults.candidates(values)
    elif "reward_model" in target.read:
        source = str(values.get("data_source"))
        scorer = faults.guess_scorer(source) if recipe is None else faults.built_in(recipe.reward.scorer)
        if source in report.scorers or len(report.scorers) < _MOST_SOURCES:
            report.scorers[source] = scorer if recipe is None else recipe.reward.scorer
        yield from faults.label(values, scorer)
    yield from items.faults(values)


def _undeclared(values: Mapping[str, Any], recipe: Recipe | None) -> Iterator[str]:
    for column in PLACEHOLDERS:
        if recipe is not None and values.get(column) and column.removesuffix("s") not in recipe.task.modalities:
            yield column


def _others(report: Report, recipe: Recipe | None) -> list[Path]:
    """The recipe's training and validation files that were not given, when one of them was."""
    given = {target.path.resolve() for target in report.targets}
    if not any(target.part in ("train", "val") for target in report.targets):
        return []
    return [path for path, part in parts(recipe).items() if part != "probe" and path not in given and path.is_file()]


def _check_twins(report: Report, index: Index, others: Sequence[Path]) -> None:
    names = [target.name for target in report.targets]
    for path in others:
        try:
            for row, values in columns.read_rows(path, _READ):
                index.add(len(names), row, values)
        except InvalidInput as error:
            report.findings.add(Finding("file-unreadable", error.message, str(path), None, error.hint))
        names.append(str(path))
    found = {"within_files": 0, "across_files": 0, "other_label": 0}
    for twin in index.twins():
        if twin.first_file == twin.file and twin.file >= len(report.targets):
            continue
        code = "duplicate-row" if twin.first_file == twin.file else "duplicate-across-files"
        found["within_files" if code == "duplicate-row" else "across_files"] += 1
        first = f"row {twin.first_row}"
        first += "" if twin.first_file == twin.file else f" of {names[twin.first_file]}"
        report.findings.add(Finding(code, f"asks the same as {first}, of the same media", names[twin.file], twin.row))
        if not twin.agrees:
            found["other_label"] += 1
            said = f"asks the same as {first}, and has another label"
            report.findings.add(Finding("duplicate-other-label", said, names[twin.file], twin.row))
    report.duplicates = found


def _start_counting(report: Report, recipe: Recipe | None, model: str, stack: ExitStack) -> Counting | None:
    countable = [target for target in report.targets if "prompt" in target.read]
    if not countable:
        return None
    corpus = Path(recipe.data.train[0]).expanduser() if recipe else countable[0].path
    try:
        counting = Counting(
            [(target.path, target.chosen if target in countable else []) for target in report.targets],
            model=model,
            corpus=corpus if corpus.is_file() else countable[0].path,
            soundtrack=bool(recipe and recipe.data.soundtrack),
            processor=recipe.data.processor if recipe else None,
        )
    except OmniError as error:
        report.findings.add(Finding("length-not-checked", error.message, hint=error.hint))
        return None
    return stack.enter_context(counting)


def _check_lengths(
    report: Report, recipe: Recipe | None, counting: Counting, model: str, advance: Callable[[int], object]
) -> None:
    found = Distribution()
    try:
        for length in counting.lengths():
            target = report.targets[length.file]
            if length.fault and target.faulty[length.row]:
                pass  # what is wrong with the row has been said
            elif length.fault:
                report.findings.add(Finding("length-unknown", length.fault, target.name, length.row))
            else:
                found.add(length)
                judge_length(report, target, recipe, length)
            advance(1)
    except OmniError as error:
        report.findings.add(Finding("length-not-checked", error.message, hint=error.hint))
        if not found.tokens:
            return
    report.lengths = {
        "model": model,
        "budget": recipe.data.max_prompt_tokens if recipe else None,
        "truncation": recipe.data.truncation if recipe else None,
        "filtered": recipe.data.filter_overlong_prompts if recipe else None,
        "over": sum(target.over for target in report.targets),
        **found.as_dict([target.name for target in report.targets]),
    }


def judge_length(report: Report, target: Target, recipe: Recipe | None, length: Length) -> None:
    """Note a prompt that is over the recipe's budget, and what the recipe does with it."""
    if recipe is None or length.tokens <= recipe.data.max_prompt_tokens:
        return
    target.over += 1
    data = recipe.data
    said = (
        f"{length.tokens} tokens ({length.media} of media) are over `data.max_prompt_tokens` {data.max_prompt_tokens}"
    )
    hint = f"--set 'data.max_prompt_tokens = {length.tokens}'"
    if data.filter_overlong_prompts:
        code, said = "prompt-left-out", f"{said}: the row is left out"
    elif data.truncation == "error":
        code, said = "prompt-too-long", f"{said}, and `data.truncation` is `error`: the run would stop"
    elif length.media:
        code, said = "prompt-too-long", f"{said}, and cutting it (`data.truncation`) may cut into its media"
    else:
        code, said = "prompt-truncated", f"{said}: it is cut on the `{data.truncation}`"
    report.findings.add(Finding(code, said, target.name, length.row, hint))
