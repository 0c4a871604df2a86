"""Converters written the way most scripts do it, for `data.py` to compare with where no reference is given.

python tests/benchmarks/data_contenders.py mmk12|avqa|gsm8k INPUT OUTPUT
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any


def mmk12(source: Path, target: Path) -> None:
    import datasets
    from PIL import Image

    def is_good(row: dict[str, Any]) -> bool:
        if not row["question"].strip() or not row["answer"].strip() or not (row["image"] or {}).get("bytes"):
            return False
        try:
            with Image.open(io.BytesIO(row["image"]["bytes"])) as picture:
                picture.verify()
        except (OSError, SyntaxError, ValueError):
            return False
        return True

    def to_row(row: dict[str, Any], index: int) -> dict[str, Any]:
        return {
            "data_source": "mmk12",
            "prompt": _messages("<image>\n" + row["question"].strip()),
            "images": [{"bytes": row["image"]["bytes"]}],
            "ability": "math_vl",
            "reward_model": {"style": "rule", "ground_truth": row["answer"].strip()},
            "extra_info": {"index": index, "id": row["id"], "question": row["question"], "subject": row["subject"]},
        }

    splits = ("train", "test")
    files = {split: sorted(str(path) for path in source.glob(f"{split}-*.parquet")) for split in splits}
    loaded = datasets.load_dataset("parquet", data_files=files)
    for split in splits:
        rows = loaded[split].cast_column("image", datasets.Image(decode=False)).filter(is_good, num_proc=8)
        rows = rows.map(to_row, with_indices=True, num_proc=8, remove_columns=rows.column_names)
        rows.to_parquet(target / f"{split}.parquet")


def avqa(source: Path, target: Path) -> None:
    import pandas as pd

    for split, name in (("train", "train"), ("valid", "validation")):
        folder = source / split
        rows = []
        for index, record in enumerate(json.loads((folder / f"omni_rl_format_{split}.json").read_text())):
            image, audio = ((folder / record["path"][kind]).resolve() for kind in ("image", "audio"))
            letters = [option[0] for option in record["options"]]
            answer = re.fullmatch(r"<answer>(\w)</answer>", record["solution"])
            if not record["problem"] or record["data_type"] != "image_audio" or not answer or answer[1] not in letters:
                continue
            if not image.is_file() or not audio.is_file():
                continue
            text = f"<image><audio>{record['problem']}\nOptions:\n" + "\n".join(record["options"])
            rows.append(
                {
                    "data_source": "avqa_r1_6k",
                    "prompt": _messages(text),
                    "images": [{"image": str(image)}],
                    "audios": [str(audio)],
                    "ability": "audio_visual_qa",
                    "reward_model": {"style": "rule", "ground_truth": record["solution"]},
                    "extra_info": {"index": index, "id": str(record["problem_id"]), "question": record["problem"]},
                }
            )
        pd.DataFrame(rows).to_parquet(target / f"{name}.parquet", index=False)


def gsm8k(source: Path, target: Path) -> None:
    import pandas as pd

    for split in ("train", "test"):
        rows = []
        for index, line in enumerate((source / f"{split}.jsonl").read_text().splitlines()):
            record = json.loads(line)
            number = re.search(r"#### (-?[0-9.,]+)", record["answer"])
            if number:
                rows.append(
                    {
                        "data_source": "openai/gsm8k",
                        "prompt": _messages(record["question"]),
                        "ability": "math",
                        "reward_model": {"style": "rule", "ground_truth": number[1].replace(",", "")},
                        "extra_info": {"split": split, "index": index, **record},
                    }
                )
        pd.DataFrame(rows).to_parquet(target / f"{split}.parquet", index=False)


def _messages(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "Think, then answer. " * 20}, {"role": "user", "content": text}]


if __name__ == "__main__":
    Path(sys.argv[3]).mkdir(parents=True, exist_ok=True)
    {"mmk12": mmk12, "avqa": avqa, "gsm8k": gsm8k}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
