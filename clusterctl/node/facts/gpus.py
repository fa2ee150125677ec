"""Facts about GPUs, as NVIDIA's programs report them."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from clusterctl.node.facts.report import deadline, output
from clusterctl.node.record import from_json

DRIVER = "/proc/driver/nvidia/version"


@dataclass(frozen=True)
class ProcessOnGpu:
    """A process that uses a GPU, and its memory on that GPU. None: nvidia-smi has N/A."""

    pid: Optional[float]
    memory_mib: Optional[float]


@dataclass(frozen=True)
class GpuState:
    """A GPU. `bus` is its PCI address. What nvidia-smi has as N/A is None, or an empty text.

    `throttled` are the active reasons for a lower clock, `ecc` the counters of memory errors that
    are not 0. `recovery_action` is what the driver recommends for a broken GPU.
    """

    bus: str
    name: str
    uuid: str
    memory_total_mib: Optional[float]
    memory_used_mib: Optional[float]
    utilization_percent: Optional[float]
    power_w: Optional[float]
    temperature_c: Optional[float]
    clock_mhz: Optional[float]
    throttled: tuple[str, ...]
    ecc: dict[str, int]
    remap_pending: bool
    remap_failed: bool
    recovery_action: str
    fabric: str
    processes: tuple[ProcessOnGpu, ...]


@dataclass(frozen=True)
class GpusOfNode:
    """The GPUs, in nvidia-smi's order, and the versions of the driver and of its CUDA."""

    driver: str
    cuda: str
    gpus: tuple[GpuState, ...]


# Without persistence mode the driver initializes each GPU again.
@deadline(20.0)
def gpus() -> Optional[GpusOfNode]:
    """Return what nvidia-smi reports; None without that program. Raises OSError if it fails."""
    if not shutil.which("nvidia-smi"):
        return None
    text = output(["nvidia-smi", "-q", "-x"], check=False) or ""
    # It exits with an error also after a complete report, for example for a broken infoROM.
    if "</nvidia_smi_log>" not in text:
        raise OSError(f"nvidia-smi -q -x: {text.strip()[:200] or 'no output'}")
    from xml.etree.ElementTree import fromstring  # slow to import: a fifth of the program's start

    log = fromstring(text[: text.index("</nvidia_smi_log>") + len("</nvidia_smi_log>")])
    return GpusOfNode(
        _text(log, "driver_version"),
        _text(log, "cuda_version"),
        tuple(_gpu(element) for element in log.iter("gpu")),
    )


def _gpu(gpu: Any) -> GpuState:
    ecc = {
        f"{period}_{element.tag}": _count(element)
        for period in ("volatile", "aggregate")
        for element in gpu.iterfind(f"ecc_errors/{period}/*")
        if "uncorrectable" in element.tag or "threshold" in element.tag
    }
    # nvidia-smi renamed the throttle reasons to event reasons.
    events = gpu.find("clocks_event_reasons")
    events = gpu.find("clocks_throttle_reasons") if events is None else events
    return GpuState(
        bus=(gpu.get("id") or "").lower(),
        name=_text(gpu, "product_name"),
        uuid=_text(gpu, "uuid"),
        memory_total_mib=_number(gpu, "fb_memory_usage/total"),
        memory_used_mib=_number(gpu, "fb_memory_usage/used"),
        utilization_percent=_number(gpu, "utilization/gpu_util"),
        power_w=_number(gpu, "gpu_power_readings/instant_power_draw")
        or _number(gpu, "gpu_power_readings/power_draw")
        or _number(gpu, "power_readings/power_draw"),
        temperature_c=_number(gpu, "temperature/gpu_temp"),
        clock_mhz=_number(gpu, "clocks/sm_clock"),
        throttled=tuple(
            sorted(
                element.tag.partition("_reason_")[2]
                for element in (events if events is not None else ())
                if (element.text or "").strip() == "Active" and "idle" not in element.tag
            )
        ),
        ecc={name: number for name, number in ecc.items() if number},
        remap_pending=_text(gpu, "remapped_rows/remapped_row_pending") == "Yes",
        remap_failed=_text(gpu, "remapped_rows/remapped_row_failure") == "Yes",
        recovery_action=_text(gpu, "gpu_recovery_action"),
        fabric=_text(gpu, "fabric/state"),
        processes=tuple(
            ProcessOnGpu(_number(one, "pid"), _number(one, "used_memory"))
            for one in gpu.iterfind("processes/process_info")
        ),
    )


def _text(element: Any, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _number(element: Any, path: str) -> Optional[float]:
    """Return `42.00 W` as 42.0; None for N/A."""
    found = re.match(r"-?\d+(\.\d+)?", _text(element, path))
    return float(found[0]) if found else None


def _count(element: Any) -> int:
    text = (element.text or "").strip()
    return int(text) if text.isdigit() else int(text == "Yes")


def has_driver() -> bool:
    """Return whether NVIDIA's driver is loaded."""
    return Path(DRIVER).exists()


@deadline(30.0)
def capabilities() -> tuple[int, ...]:
    """Return the compute capabilities of the GPUs, ascending, 90 for 9.0; empty without NVIDIA's
    driver."""
    if not has_driver():
        return ()
    text = output(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], check=False)
    found = re.findall(r"(?m)^\s*(\d+)\.(\d)\s*$", text or "")
    return tuple(sorted({int(major) * 10 + int(minor) for major, minor in found}))


def nvlink() -> Optional[dict[str, tuple[int, ...]]]:
    """Return for each GPU the numbers of its inactive NVLinks; None without NVLink or without
    NVIDIA's driver. Raises OSError if nvidia-smi fails.

    nvidia-smi prints no links of a GPU whose links are all inactive, and none of a card without
    NVLink. Where another GPU has links, these are its own numbers too."""
    if not has_driver():
        return None
    text = output(["nvidia-smi", "nvlink", "-s"])
    if text is None:
        raise OSError("nvidia-smi nvlink -s failed")
    if "Link" not in text:
        return None
    active: dict[str, dict[int, bool]] = {}
    for line in text.splitlines():
        if head := re.match(r"GPU (\d+):", line):
            links = active.setdefault(head[1], {})
        elif link := re.search(r"Link (\d+): (<inactive>)?", line):
            links[int(link[1])] = not link[2]
    numbers = sorted({number for links in active.values() for number in links})
    down = {
        gpu: tuple(number for number in numbers if not links.get(number, bool(links)))
        for gpu, links in active.items()
    }
    return {gpu: links for gpu, links in down.items() if links}


def fabric_manager() -> Optional[str]:
    """Return the state of NVIDIA's Fabric Manager, `active` or another of systemd's; None on a
    machine without NVSwitches."""
    if not Path("/dev/nvidia-nvswitch0").exists():
        return None
    # systemctl exits with 3 if the service does not run, which is a result.
    return (output(["systemctl", "is-active", "nvidia-fabricmanager"], check=False) or "").strip()


@deadline(30.0)
def dcgm() -> Optional[tuple[str, ...]]:
    """Return what fails in NVIDIA's level 1 diagnosis, which takes seconds; None without dcgmi.
    Raises OSError if nothing failed, but not everything was tested."""
    if not shutil.which("dcgmi"):
        return None
    # dcgmi exits with an error also if a test fails, which is a result.
    text = output(["dcgmi", "diag", "-r", "1", "-j"], check=False) or ""
    try:
        return failed_tests(from_json(Any, text))
    except ValueError:
        raise OSError(f"dcgmi diag -r 1 -j: {text.strip()[:200] or 'no output'}") from None


def failed_tests(found: Any) -> tuple[str, ...]:
    """Return the failed tests with their warnings. Raises OSError if there is none, but an error,
    or no test that passed."""
    tests = _tests(found)
    failed = tuple(text for status, text in tests if status == "fail")
    unknown = [text for status, text in tests if status == "error"]
    if not failed and (unknown or "pass" not in dict(tests)):
        raise OSError(f"dcgmi diag -r 1: {'; '.join(unknown) or 'no test has run'}")
    return failed


def _tests(found: Any, name: str = "") -> list[tuple[str, str]]:
    """Return the status of each test, and its name with its warnings. DCGM 2, 3 and 4 have
    different layouts, so the whole output is searched."""
    if isinstance(found, list):
        return [test for one in found for test in _tests(one, name)]
    if not isinstance(found, dict):
        return []
    if "runtime_error" in found:
        return [("error", str(found["runtime_error"]))]
    name = str(found.get("name") or found.get("entity_id") or name)
    if "status" in found:
        warnings = found.get("warnings") or found.get("warning") or found.get("info") or ""
        text = warnings if isinstance(warnings, str) else _warnings(warnings)
        return [(str(found["status"]).lower(), f"{name}: {text}".rstrip(": "))]
    return [test for one in found.values() for test in _tests(one, name)]


def _warnings(found: Any) -> str:
    texts = (one.get("warning", "") if isinstance(one, dict) else str(one) for one in found)
    return "; ".join(filter(None, texts))
