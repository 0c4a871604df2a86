"""The row of preference pairs: one question about one medium, a better and a worse answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from omnirl.data import sample
from omnirl.data.sample import Medium

if TYPE_CHECKING:
    import pyarrow as pa

PREFERENCE_SCHEMA = "omnirl/preference/1"
"""Name and version of the row; kept in the parquet's key-value metadata under `omnirl.schema`."""

Modality = Literal["image", "video", "audio"]


@cache
def schema() -> pa.Schema:
    """The Arrow schema of a preference pair: declared, never inferred, so files of all modalities go together."""
    import pyarrow as pa

    text = pa.string()
    message = pa.struct({"role": text, "content": text})
    return pa.schema(
        {
            "data_source": text,
            "prompt": pa.list_(message),
            "chosen": message,
            "rejected": message,
            "images": pa.list_(text),
            "audios": pa.list_(text),
            "videos": pa.list_(text),
            "win_score": pa.float64(),
            "lose_score": pa.float64(),
            "ability": text,
            "reward_model": pa.struct({"style": text, "ground_truth": text}),
            "extra_info": sample.schema().field("extra_info").type,
        },
        metadata={"omnirl.schema": PREFERENCE_SCHEMA},
    )


@dataclass(frozen=True, slots=True)
class Preference:
    """One pair.

    `prompt` is the user's message with the placeholder of its one medium; `path` is that medium's absolute path.
    `chosen` and `rejected` are texts of an assistant, `win_score` and `lose_score` what a judge gave them.
    `ground_truth` names the better one as the data set does. `details` is a JSON text for what only one data set has.
    `tally` is the label under which the report counts this row; it is not stored.
    """

    data_source: str
    modality: Modality
    prompt: str
    path: Path
    chosen: str
    rejected: str
    win_score: float
    lose_score: float
    ability: str
    ground_truth: str
    split: str
    index: int
    question: str
    id: str = ""
    details: str = ""
    tally: str = field(default="", compare=False)

    @staticmethod
    def schema() -> pa.Schema:
        """The Arrow schema of `to_row`."""
        return schema()

    def media(self) -> tuple[Medium, ...]:
        return (Medium(self.modality, str(self.path)),)

    def to_row(self) -> dict[str, Any]:
        """The row as `schema()` declares it."""
        paths: dict[str, list[str]] = {"images": [], "audios": [], "videos": []}
        paths[f"{self.modality}s"].append(str(self.path))
        return {
            "data_source": self.data_source,
            "prompt": [{"role": "user", "content": self.prompt}],
            "chosen": {"role": "assistant", "content": self.chosen},
            "rejected": {"role": "assistant", "content": self.rejected},
            **paths,
            "win_score": self.win_score,
            "lose_score": self.lose_score,
            "ability": self.ability,
            "reward_model": {"style": "preference", "ground_truth": self.ground_truth},
            "extra_info": {
                "split": self.split,
                "index": self.index,
                "id": self.id,
                "kind": self.modality,
                "question": self.question,
                "answer": self.ground_truth,
                "options": [],
                "details": self.details,
            },
        }

    def size_bytes(self) -> int:
        """About how much room the row takes in memory; what bounds a row group."""
        texts = (self.prompt, self.chosen, self.rejected, self.question, self.details, self.id)
        return sum(map(len, texts)) + 512
