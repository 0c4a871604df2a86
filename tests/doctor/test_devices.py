"""Devices, with programs on the PATH that print what real ones print, and folders that look like a driver's."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnirl.doctor import ascend, nvidia
from omnirl.doctor.check import Check
from omnirl.recipe.model import Hardware

H200 = "0, GPU-bbff6634-5be5-a8fb-d78a-7ee25f9642e1, NVIDIA H200, 143771, 0, 580.159.04, Disabled\n"
FOUR = "".join(
    f"{index}, GPU-{index}bff6634-5be5-a8fb-d78a-7ee25f9642e1, NVIDIA H800, 81559, 4, 580.82.07, Disabled\n"
    for index in range(4)
)
NPU_SMI = """
+------------------------------------------------------------------------------------------------+
| npu-smi 25.0.0                   Version: 25.0.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 170.1       35                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 0           0    / 0          3401 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | Alarm         | -           35                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          15503/ 65536         |
+===========================+===============+====================================================+
"""


def program(folder: Path, name: str, says: str, code: int = 0, stream: int = 1) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text(says)
    script = folder / name
    script.write_text(f"#!/bin/sh\n/bin/cat '{folder / name}.txt' >&{stream}\nexit {code}\n")
    script.chmod(0o755)


def hardware(device: str, devices: int, memory_gib: float | None = None) -> Hardware:
    facts = {"device": device, "devices_per_node": devices, "memory_gib": memory_gib}
    return Hardware(summary="for a test", nodes=1, **facts)


def gpus(tmp_path: Path, says: str | None, wanted: Hardware | None, code: int = 0, **environ: str) -> dict[str, Check]:
    if says is not None:
        program(tmp_path / "bin", "nvidia-smi", says, code)
    given = {"PATH": str(tmp_path / "bin"), **environ}
    return {one.name: one for one in nvidia.examine(given, wanted, tmp_path)}


def test_a_machine_with_what_is_wanted(tmp_path: Path) -> None:
    found = gpus(tmp_path, FOUR, hardware("cuda", 4, 80.0))
    assert {one.verdict for one in found.values()} == {"ok"}
    assert found["GPUs"].found == "4 (NVIDIA H800)"
    assert found["GPU memory"].found == "79.6 GiB each"


def test_too_few_and_too_small(tmp_path: Path) -> None:
    found = gpus(tmp_path, H200, hardware("cuda", 4, 180.0))
    assert (found["GPUs"].verdict, found["GPUs"].wanted) == ("fail", "4 in each machine")
    assert found["GPUs"].hint == "--set 'hardware.devices_per_node = 1'"
    assert (found["GPU memory"].verdict, found["GPU memory"].found) == ("fail", "140.4 GiB")


def test_an_old_driver_a_card_in_parts_and_one_in_use(tmp_path: Path) -> None:
    says = "0, GPU-a, A100, 40960, 30000, 535.129.03, Enabled\n1, GPU-b, A100, 40960, 3, 535.129.03, Disabled\n"
    found = gpus(tmp_path, says, hardware("cuda", 2))
    assert (found["NVIDIA driver"].verdict, found["NVIDIA driver"].found) == ("fail", "535.129.03")
    assert (found["MIG"].verdict, found["MIG"].hint) == ("fail", "sudo nvidia-smi -i 0 -mig 0")
    assert (found["GPUs in use"].verdict, found["GPUs in use"].found) == ("warn", "GPU 0: 29.3 GiB")
    unasked = gpus(tmp_path, says, None)
    assert "fail" not in {one.verdict for one in unasked.values()}


@pytest.mark.parametrize(
    ("text", "usable", "verdict", "hint"),
    [
        ("0,1,2,3", 4, "ok", None),
        ("2,3", 2, "ok", None),
        (" 1 , 0 ", 2, "ok", None),
        ("0-3", 1, "fail", "export CUDA_VISIBLE_DEVICES=0,1,2,3"),
        ("0,0,1", 0, "fail", "export CUDA_VISIBLE_DEVICES=0,1"),
        ("0,9", 1, "fail", "export CUDA_VISIBLE_DEVICES=0"),
        ("4,5", 0, "fail", "export CUDA_VISIBLE_DEVICES=0,1"),
        ("0,,1", 1, "fail", "export CUDA_VISIBLE_DEVICES=0"),
        ("all", 0, "fail", "unset CUDA_VISIBLE_DEVICES"),
        ("", 0, "warn", "unset CUDA_VISIBLE_DEVICES"),
        ("-1", 0, "warn", "unset CUDA_VISIBLE_DEVICES"),
        ("GPU-1bff6634,GPU-0bff6634-5be5-a8fb-d78a-7ee25f9642e1", 2, "ok", None),
        ("2,GPU-x,1", 1, "fail", "export CUDA_VISIBLE_DEVICES=2"),
        ("GPU-x", 0, "fail", "unset CUDA_VISIBLE_DEVICES"),
    ],
)
def test_the_visible_devices(tmp_path: Path, text: str, usable: int, verdict: str, hint: str | None) -> None:
    found = gpus(tmp_path, FOUR, hardware("cuda", 1), CUDA_VISIBLE_DEVICES=text)
    check = found["CUDA_VISIBLE_DEVICES"]
    assert (check.verdict, check.hint) == (verdict, hint)
    assert check.found.startswith(f"`{text}`: {usable} of 4 devices")
    assert (found["GPUs"].verdict == "ok") == (usable >= 1)


def test_a_driver_that_does_not_answer(tmp_path: Path) -> None:
    says = "Failed to initialize NVML: Driver/library version mismatch\n"
    found = gpus(tmp_path, says, hardware("cuda", 1), code=18)
    assert list(found) == ["NVIDIA driver"]
    assert (found["NVIDIA driver"].verdict, found["NVIDIA driver"].hint) == ("fail", "sudo reboot")
    assert "version mismatch" in found["NVIDIA driver"].found


def test_an_answer_that_is_no_table(tmp_path: Path) -> None:
    assert gpus(tmp_path, "no devices were found\n", hardware("cuda", 1))["NVIDIA driver"].verdict == "fail"
    assert nvidia.parse("0, GPU-a, NVIDIA GB10, [N/A], [N/A], 580.95.05, [N/A]\nnonsense\n")[0].memory_mib == 0


def test_no_gpu_and_none_wanted(tmp_path: Path) -> None:
    found = gpus(tmp_path, None, None)
    assert [(one.name, one.verdict) for one in found.values()] == [("GPUs", "ok")]
    wanted = gpus(tmp_path, None, hardware("cuda", 4))
    assert {name: one.verdict for name, one in wanted.items()} == {"NVIDIA driver": "fail", "GPUs": "fail"}


def test_a_driver_without_its_program(tmp_path: Path) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM version: 580.159.04\n")
    assert "not on the PATH" in gpus(tmp_path, None, None)["NVIDIA driver"].found


def npus(root: Path, wanted: Hardware | None, **environ: str) -> dict[str, Check]:
    return {one.name: one for one in ascend.examine({"PATH": str(root / "bin"), **environ}, wanted, root)}


@pytest.fixture
def ascend_root(tmp_path: Path) -> Path:
    program(tmp_path / "bin", "npu-smi", NPU_SMI)
    (tmp_path / "dev").mkdir()
    for index in range(16):
        (tmp_path / "dev" / f"davinci{index}").touch()
    (tmp_path / "dev" / "davinci_manager").touch()
    home = tmp_path / ascend.INSTALLED
    (home / "driver").mkdir(parents=True)
    (home / "driver" / "version.info").write_text("Version=25.0.0\nascendhal_version=7.35.23\n")
    (home / "ascend-toolkit/latest").mkdir(parents=True)
    (home / "ascend-toolkit/latest/version.cfg").write_text(
        "# version: 1.0\nruntime_running_version=[7.7.0.1:8.3.RC1]\ntoolkit_running_version=[7.7.0.2:8.3.RC1]\n"
    )
    return tmp_path


def test_npus(ascend_root: Path) -> None:
    latest = str(ascend_root / ascend.INSTALLED / "ascend-toolkit/latest")
    found = npus(ascend_root, hardware("npu", 16, 64.0), ASCEND_HOME_PATH=latest, ATB_HOME_PATH="/x")
    assert found["Ascend driver"].found == "25.0.0"
    assert found["CANN"].found == f"8.3.RC1, {latest}"
    assert (found["NPUs"].verdict, found["NPUs"].found) == ("ok", "16")
    assert (found["NPU memory"].verdict, found["NPU memory"].found) == ("ok", "64.0 GiB each (Ascend910)")
    assert (found["NPU health"].verdict, found["NPU health"].found) == ("fail", "1 of 2 chips are not OK")


def test_the_environment_of_the_toolkit(ascend_root: Path) -> None:
    found = npus(ascend_root, hardware("npu", 16))
    assert (found["CANN"].verdict, found["CANN"].hint) == (
        "fail",
        "source /usr/local/Ascend/ascend-toolkit/set_env.sh",
    )
    assert (found["ATB"].verdict, found["ATB"].hint) == ("warn", "source /usr/local/Ascend/nnal/atb/set_env.sh")


@pytest.mark.parametrize(
    ("text", "usable", "hint"),
    [
        ("4,5,6,7", 4, None),
        ("4-7", 1, "export ASCEND_RT_VISIBLE_DEVICES=4,5,6,7"),
        ("4,4", 0, "export ASCEND_RT_VISIBLE_DEVICES=4"),
        ("", 0, "unset ASCEND_RT_VISIBLE_DEVICES"),
        ("16,17", 0, "export ASCEND_RT_VISIBLE_DEVICES=0,1"),
    ],
)
def test_the_visible_npus(ascend_root: Path, text: str, usable: int, hint: str | None) -> None:
    found = npus(ascend_root, hardware("npu", 4), ASCEND_RT_VISIBLE_DEVICES=text)
    check = found["ASCEND_RT_VISIBLE_DEVICES"]
    assert check.hint == hint
    assert check.found.startswith(f"`{text}`: {usable} of 16 devices")
    assert (found["NPUs"].verdict == "ok") == (usable >= 4)


def test_no_npu_and_none_wanted(tmp_path: Path) -> None:
    assert npus(tmp_path, None) == {}
    found = npus(tmp_path, hardware("npu", 16))
    assert {n: one.verdict for n, one in found.items()} == {"Ascend driver": "fail", "CANN": "fail", "NPUs": "fail"}
