"""Packages against what omnirl asks for, by the metadata in a folder."""

from __future__ import annotations

from pathlib import Path

from omnirl.doctor import packages
from omnirl.doctor.check import Check
from tests.doctor.site import install, omnirl_site


def checked(extra: str | None, path: list[str]) -> dict[str, Check]:
    return {one.name: one for one in packages.check_folder(extra, path)}


def test_what_fits_is_told_with_what_was_not_tested(tmp_path: Path) -> None:
    found = checked("train", omnirl_site(tmp_path, torch="2.14.0+cpu", transformers="5.10.4", verl="0.9.1"))
    assert list(found) == ["packages"]
    assert found["packages"].verdict == "ok"
    assert found["packages"].found == "4 packages of `omnirl[train]`; not the tested ones: torch 2.14.0+cpu"
    assert "torch 2.13.0 or 2.14.1" in str(found["packages"].wanted)


def test_a_local_part_of_a_version_is_no_other_version(tmp_path: Path) -> None:
    found = checked("train", omnirl_site(tmp_path, torch="2.14.1+cu130", transformers="5.10.4", verl="0.9.1"))
    assert found["packages"].found == "4 packages of `omnirl[train]`"


def test_missing_packages_come_in_one_line_with_one_command(tmp_path: Path) -> None:
    found = checked("train", omnirl_site(tmp_path, torch="2.14.1"))
    assert found["packages"].verdict == "fail"
    assert found["packages"].found == "missing: transformers<5.11,>=5.10.4, verl[verl-core]==0.9.1"
    assert found["packages"].hint == "pip install 'omnirl[train]'"


def test_flash_attention_is_built_after_torch(tmp_path: Path) -> None:
    hint = str(checked("gpu", omnirl_site(tmp_path))["packages"].hint)
    assert hint.index("'torch==2.11.0'") < hint.index("omnirl[gpu]' --no-build-isolation")


def test_too_old_and_too_new(tmp_path: Path) -> None:
    found = checked("train", omnirl_site(tmp_path, torch="2.9.1", transformers="5.11.0", verl="0.9.1"))
    assert (found["package torch"].verdict, found["package torch"].found) == ("fail", "2.9.1")
    assert found["package torch"].hint == "pip install 'torch<2.15,>=2.13'"
    assert found["package transformers"].found == "5.11.0"
    assert "package verl" not in found


def test_the_offending_pair_is_named(tmp_path: Path) -> None:
    path = omnirl_site(tmp_path, torch="2.14.1", vllm_omni="0.24.0")
    install(tmp_path, "vllm", "0.26.0", ["torch==2.11.0", "transformers>=5.5.3", "numpy; extra == 'x'"])
    found = checked("gpu", path)
    pair = found["pair vllm + torch"]
    assert pair.verdict == "fail"
    assert pair.found == "vllm 0.26.0 asks for torch==2.11.0, and 2.14.1 is there"
    assert "torch 2.11.0, vllm 0.26.0, vllm-omni 0.26.0" in str(pair.wanted)
    assert "vllm-omni 0.24.0 beside vllm 0.26.0" in found["pair vllm-omni + vllm"].found


def test_torch_npu_goes_with_its_torch(tmp_path: Path) -> None:
    found = checked("npu", omnirl_site(tmp_path, torch="2.11.0+cpu", torch_npu="2.9.0"))
    assert "torch-npu 2.9.0 beside torch 2.11.0+cpu" in found["pair torch-npu + torch"].found
    assert found["pair torch-npu + torch"].wanted == "nothing was tested on this hardware"
    assert "pair torch-npu + torch" not in checked(
        "npu", omnirl_site(tmp_path / "b", torch="2.11.1", torch_npu="2.11.0")
    )


def test_verl_asks_with_its_extra(tmp_path: Path) -> None:
    path = omnirl_site(tmp_path, torch="2.14.1", transformers="5.10.4", tensordict="0.11.0")
    install(tmp_path, "verl", "0.9.1", ["tensordict<=0.10.0; extra == 'verl-core'", "torch==2.11.0; extra == 'vllm'"])
    install(tmp_path, "torchvision", "0.29.1", ["torch==2.14.0"])
    pairs = [name for name in checked("train", path) if name.startswith("pair")]
    assert pairs == []  # neither is among what these tests' omnirl asks for
    install(tmp_path, "hydra-core", "1.3.8", ["antlr4-python3-runtime==4.9.*"])
    install(tmp_path, "antlr4-python3-runtime", "4.13.2")
    clash = checked("train", path)["pair hydra-core + antlr4-python3-runtime"]
    assert (clash.verdict, clash.hint) == ("fail", "pip install 'antlr4-python3-runtime==4.9.*'")


def test_the_extra_is_guessed_from_what_is_there(tmp_path: Path) -> None:
    assert packages.guess(omnirl_site(tmp_path / "a", torch="2.14.1")) == "train"
    assert packages.guess(omnirl_site(tmp_path / "b", torch="2.11.0", vllm="0.26.0")) == "gpu"
    assert packages.guess(omnirl_site(tmp_path / "c", torch="2.11.0", torch_npu="2.11.0")) == "npu"
    found = checked(None, omnirl_site(tmp_path / "d"))
    assert found["packages"].verdict == "ok"
    assert (found["training packages"].verdict, found["training packages"].hint) == (
        "warn",
        "pip install 'omnirl[train]'",
    )


def test_damaged_metadata(tmp_path: Path) -> None:
    path = omnirl_site(tmp_path, torch="2.14.1", transformers="5.10.4")
    (tmp_path / "verl-0.9.1.dist-info").mkdir()
    install(tmp_path, "peft", "0.21.2", ["this is (no requirement", "torch>=2"])
    assert checked("train", path)["packages"].found == "missing: verl[verl-core]==0.9.1"
    assert checked("train", [str(tmp_path / "nowhere")])["packages"].verdict == "warn"
