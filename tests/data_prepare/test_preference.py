"""The row of preference pairs: what it holds, and that files of all modalities are of one type."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from omnirl.data import store
from omnirl.data.preference import PREFERENCE_SCHEMA, Preference, schema
from omnirl.data.sample import Medium, Sample


def pair(modality="image", **fields) -> Preference:
    defaults = {
        "data_source": f"omni_preference/{modality}",
        "modality": modality,
        "prompt": f"<{modality}>What?",
        "path": Path("/data/a.bin"),
        "chosen": "good",
        "rejected": "bad",
        "win_score": 8.0,
        "lose_score": 2.5,
        "ability": f"{modality}_preference",
        "ground_truth": "B",
        "split": "train",
        "index": 4,
        "question": "What?",
        "details": "{}",
    }
    return Preference(**(defaults | fields))


@pytest.mark.parametrize(("modality", "column"), [("image", "images"), ("video", "videos"), ("audio", "audios")])
def test_a_row_has_its_medium_in_the_column_of_its_modality(modality, column, tmp_path):
    row = pair(modality)
    assert row.media() == (Medium(modality, "/data/a.bin"),)
    store.write_parquet(tmp_path / "rows.parquet", [row])
    (read,) = store.read_rows(tmp_path / "rows.parquet")
    assert {name: read[name] for name in ("images", "audios", "videos")} == {
        "images": [],
        "audios": [],
        "videos": [],
        column: ["/data/a.bin"],
    }
    assert read == row.to_row()
    assert read["prompt"] == [{"role": "user", "content": f"<{modality}>What?"}]
    assert read["chosen"] == {"role": "assistant", "content": "good"}
    assert read["rejected"] == {"role": "assistant", "content": "bad"}
    assert (read["win_score"], read["lose_score"]) == (8.0, 2.5)
    assert read["reward_model"] == {"style": "preference", "ground_truth": "B"}


def test_files_of_all_modalities_go_together_and_name_their_schema(tmp_path):
    names = [tmp_path / f"{modality}.parquet" for modality in ("image", "video", "audio")]
    for name in names:
        store.write_parquet(name, [pair(name.stem)])
        assert pq.read_schema(name).metadata[b"omnirl.schema"] == PREFERENCE_SCHEMA.encode()
    assert pa.concat_tables([pq.read_table(name) for name in names]).num_rows == 3


def test_what_is_told_about_a_row_has_the_type_that_samples_have():
    assert schema().field("extra_info").type == Sample.schema().field("extra_info").type
    assert schema().field("prompt").type == Sample.schema().field("prompt").type


def test_the_size_of_a_row_grows_with_its_texts():
    assert pair(chosen="x" * 100_000).size_bytes() > 100_000 > pair().size_bytes()
