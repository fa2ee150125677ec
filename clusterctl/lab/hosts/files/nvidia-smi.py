#!/usr/bin/python3
"""The lab's stand-in for nvidia-smi: the GPUs that the instance type has, all of them simulated.

`-L` is answered by the shell script of the same name.
"""

import argparse
import json
import sys
from typing import Any

DRIVER = "580.95.05"
MARK = "simulated by clusterctl's lab"


def gpus() -> list[dict[str, Any]]:
    """One dict of query fields per GPU. Numbers are (value, unit)."""
    with open("/etc/clusterctl-lab/gpus.json", encoding="utf-8") as file:
        spec = json.load(file)
    memory = (spec["memory_mib"], "MiB")
    return [
        {
            "index": index,
            "count": spec["count"],
            "name": spec["name"],
            "gpu_name": spec["name"],
            "uuid": spec["uuids"][index],
            "pci.bus_id": f"00000000:00:{0x17 + index:02X}.0",
            "serial": "[N/A]",
            "driver_version": DRIVER,
            "pstate": "P0",
            "compute_mode": "Default",
            "persistence_mode": "Enabled",
            "memory.total": memory,
            "memory.used": (0, "MiB"),
            "memory.free": memory,
            "utilization.gpu": (0, "%"),
            "utilization.memory": (0, "%"),
            "temperature.gpu": 35,
            "power.draw": (42.00, "W"),
            "power.limit": (300.00, "W"),
            "clocks.sm": (1290, "MHz"),
            "ecc.errors.uncorrected.volatile.total": 0,
            "clocks_throttle_reasons.active": "0x0000000000000000",
        }
        for index in range(spec["count"])
    ]


def query(fields: str, style: str) -> None:
    names = [field.strip() for field in fields.split(",")]
    rows = gpus()
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="nvidia-smi", description=__doc__)
    parser.add_argument("--query-gpu", metavar="FIELDS")
    parser.add_argument("--query-compute-apps", metavar="FIELDS")
    parser.add_argument("--format", default="")
    options = parser.parse_args()
    if options.query_gpu:
        query(options.query_gpu, options.format)
    elif options.query_compute_apps:
        if "noheader" not in options.format:
            print(", ".join(field.strip() for field in options.query_compute_apps.split(",")))
    else:
        table()


main()
