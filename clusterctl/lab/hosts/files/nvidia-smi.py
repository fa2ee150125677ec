#!/usr/bin/python3
"""The lab's stand-in for nvidia-smi: the GPUs that the instance type has, all of them simulated.

`-L` is answered by the shell script of the same name. What `clusterctl lab fault gpu` has set is in
gpu-fault.json: {"gpu": INDEX, "lost": BOOLEAN, "ecc": COUNT, "remap": "pending" or "failed",
"memory": MIB, "xid": NUMBER}.
"""

import argparse
import json
import string
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
            "memory.used": (used := broken.get("memory", 0) * is_broken, "MiB"),
            "memory.free": (spec["memory_mib"] - used, "MiB"),
            "utilization.gpu": (0, "%"),
            "utilization.memory": (0, "%"),
            "temperature.gpu": 35,
            "power.draw": (42.00, "W"),
            "power.limit": (300.00, "W"),
            "clocks.sm": (1290, "MHz"),
            "ecc.errors.uncorrected.volatile.total": broken.get("ecc", 0) * is_broken,
            "clocks_throttle_reasons.active": "0x0000000000000000",
        }
        for index in range(spec["count"])
        for is_broken in [index == broken["gpu"]]
        if not (broken["lost"] and is_broken)
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


def everything() -> None:
    """Print the XML of `nvidia-smi -q -x`: of that driver's tags those in use."""
    rows, broken = gpus(), fault()
    of_gpu = string.Template(Path(__file__).with_name("nvidia-smi-gpu.xml").read_text())
    print('<?xml version="1.0" ?>\n<nvidia_smi_log>')
    print(f"\t<driver_version>{DRIVER}</driver_version>\n\t<cuda_version>{CUDA}</cuda_version>")
    print(f"\t<attached_gpus>{len(rows)}</attached_gpus>")
    for gpu in rows:
        is_broken = gpu["index"] == broken["gpu"]
        ecc, remap = (broken["ecc"], broken["remap"]) if is_broken else (0, "")
        values = {
            "bus": gpu["pci.bus_id"],
            "name": escape(gpu["name"]),
            "uuid": gpu["uuid"],
            "recovery": "Reset" if ecc or remap else "None",
            "ecc": ecc,
            "remapped": int(bool(remap)),
            "pending": "Yes" if remap == "pending" else "No",
            "failure": "Yes" if remap == "failed" else "No",
            **{name: f"{gpu[f'memory.{name}'][0]} MiB" for name in ("total", "used", "free")},
        }
        print(of_gpu.substitute(values), end="")
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
