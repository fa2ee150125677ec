#!/usr/bin/python3
"""The lab's stand-in for nvidia-smi: the GPUs that the instance type has, all of them simulated.

`-L` is answered by the shell script of the same name. What `clusterctl lab fault gpu` has set is in
gpu-fault.json: {"gpu": INDEX, "lost": BOOLEAN, "ecc": COUNT, "remap": "pending" or "failed",
"memory": MIB, "xid": NUMBER}.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

DRIVER, CUDA = "580.95.05", "13.0"
MARK = "simulated by clusterctl's lab"
FOLDER = Path("/etc/clusterctl-lab")


def fault() -> dict[str, Any]:
    """Return the fault that is set; `gpu` is -1 without one."""
    path = FOLDER / "gpu-fault.json"
    return json.loads(path.read_text()) if path.exists() else {"gpu": -1, "lost": False}


def gpus() -> list[dict[str, Any]]:
    """Return one dict of query fields for each GPU. Numbers with a unit are (value, unit)."""
    spec = json.loads((FOLDER / "gpus.json").read_text())
    broken = fault()
    memory = (spec["memory_mib"], "MiB")
    return [
        {
            "index": index,
            "count": spec["count"],
            "name": spec["name"],
            "gpu_name": spec["name"],
            "uuid": spec["uuids"][index],
            "pci.bus_id": f"00000000:00:{spec['first_bus'] + index:02X}.0",
            "serial": "[N/A]",
            "driver_version": DRIVER,
            "pstate": "P0",
            "compute_mode": "Default",
            "persistence_mode": "Enabled",
            "memory.total": memory,
            "memory.used": (used := broken.get("memory", 0) * (index == broken["gpu"]), "MiB"),
            "memory.free": (spec["memory_mib"] - used, "MiB"),
            "utilization.gpu": (0, "%"),
            "utilization.memory": (0, "%"),
            "temperature.gpu": 35,
            "power.draw": (42.00, "W"),
            "power.limit": (300.00, "W"),
            "clocks.sm": (1290, "MHz"),
            "ecc.errors.uncorrected.volatile.total": broken.get("ecc", 0)
            if index == broken["gpu"]
            else 0,
            "clocks_throttle_reasons.active": "0x0000000000000000",
        }
        for index in range(spec["count"])
        if not (broken["lost"] and index == broken["gpu"])
    ]


def query(fields: str, style: str) -> None:
    names = [field.strip() for field in fields.split(",")]
    rows = gpus()
    if not rows:
        print("No devices were found")
        sys.exit(6)  # as NVIDIA's own program does
    for name in names:
        if name not in rows[0]:
            print(f'Field "{name}" is not a valid field to query.\n')
            sys.exit(2)
    options = style.split(",")
    if options[0] != "csv":
        sys.exit("the lab's nvidia-smi writes --format=csv[,noheader][,nounits] only")
    units = "nounits" not in options

    def text(value: object) -> str:
        if not isinstance(value, tuple):
            return str(value)
        number = f"{value[0]:.2f}" if isinstance(value[0], float) else str(value[0])
        return f"{number} {value[1]}" if units else number

    if "noheader" not in options:
        kinds = [rows[0][name] for name in names]
        heads = zip(names, kinds)
        print(", ".join(f"{n} [{k[1]}]" if isinstance(k, tuple) and units else n for n, k in heads))
    for row in rows:
        print(", ".join(text(row[name]) for name in names))


def table() -> None:
    line = "+" + "-" * 77 + "+"
    print(line)
    print(f"| NVIDIA-SMI {DRIVER}, {MARK}".ljust(78) + "|")
    print(line)
    for gpu in gpus():
        used, total = gpu["memory.used"][0], gpu["memory.total"][0]
        left = f"| {gpu['index']:>3}  {gpu['name']:<38} {gpu['pci.bus_id']}"
        print(f"{left}  {used}MiB / {total}MiB".ljust(78) + "|")
    print(line)
    print("| No running processes found".ljust(78) + "|")
    print(line)


def described(gpu: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the tags of a GPU in the XML of that driver's `nvidia-smi -q -x`: those in use.

    A tag's content is text, (value, unit), or a list of tags.
    """
    broken = fault()
    is_broken = gpu["index"] == broken["gpu"]
    ecc, remap = (broken["ecc"], broken["remap"]) if is_broken else (0, "")
    errors = [
        ("sram_correctable", 0),
        ("sram_uncorrectable_parity", 0),
        ("sram_uncorrectable_secded", 0),
        ("dram_correctable", 0),
        ("dram_uncorrectable", ecc),
    ]
    remapped = [
        ("remapped_row_corr", 0),
        ("remapped_row_unc", int(bool(remap))),
        ("remapped_row_pending", "Yes" if remap == "pending" else "No"),
        ("remapped_row_failure", "Yes" if remap == "failed" else "No"),
    ]
    idle = [("clocks_event_reason_gpu_idle", "Active")]
    hot = [("clocks_event_reason_hw_thermal_slowdown", "Not Active")]
    return [
        ("product_name", gpu["name"]),
        ("uuid", gpu["uuid"]),
        ("gpu_recovery_action", "Reset" if ecc or remap else "None"),
        ("fb_memory_usage", [(name, gpu[f"memory.{name}"]) for name in ("total", "used", "free")]),
        ("utilization", [("gpu_util", gpu["utilization.gpu"])]),
        ("ecc_errors", [("volatile", errors), ("aggregate", errors)]),
        ("remapped_rows", remapped),
        ("temperature", [("gpu_temp", (gpu["temperature.gpu"], "C"))]),
        ("gpu_power_readings", [("instant_power_draw", gpu["power.draw"])]),
        ("clocks", [("sm_clock", gpu["clocks.sm"])]),
        ("clocks_event_reasons", idle + hot),
        ("fabric", [("state", "N/A"), ("status", "N/A")]),
        ("processes", ""),
    ]


def xml(tags: list[tuple[str, Any]], indent: str) -> str:
    lines = []
    for name, value in tags:
        if isinstance(value, list):
            lines.append(f"{indent}<{name}>\n{xml(value, indent + chr(9))}{indent}</{name}>\n")
        else:
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            lines.append(f"{indent}<{name}>{escape(shown)}</{name}>\n")
    return "".join(lines)


def everything() -> None:
    """Print the XML of `nvidia-smi -q -x`."""
    rows = gpus()
    head = [("driver_version", DRIVER), ("cuda_version", CUDA), ("attached_gpus", len(rows))]
    print('<?xml version="1.0" ?>\n<nvidia_smi_log>')
    print(xml(head, "\t"), end="")
    for gpu in rows:
        print(f'\t<gpu id="{gpu["pci.bus_id"]}">\n{xml(described(gpu), chr(9) * 2)}\t</gpu>')
    print("</nvidia_smi_log>")


def main() -> None:
    parser = argparse.ArgumentParser(prog="nvidia-smi", description=__doc__)
    parser.add_argument("--query-gpu", metavar="FIELDS")
    parser.add_argument("--query-compute-apps", metavar="FIELDS")
    parser.add_argument("--format", default="")
    parser.add_argument("-q", "--query", action="store_true")
    parser.add_argument("-x", "--xml-format", action="store_true")
    options = parser.parse_args()
    if options.query and options.xml_format:
        everything()
    elif options.query_gpu:
        query(options.query_gpu, options.format)
    elif options.query_compute_apps:
        if "noheader" not in options.format:
            print(", ".join(field.strip() for field in options.query_compute_apps.split(",")))
    else:
        table()


main()
