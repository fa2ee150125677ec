#!/usr/bin/python3
"""The lab's stand-in for cloud-init: its `status` command, with cloud-init's words and statuses."""

import argparse
import json
import sys
import time

STATUS = "/run/cloud-init/lab-status"
VERSION = "cloud-init 0.0 (simulated by clusterctl's lab)"


def read_status() -> tuple[str, list[str]]:
    """Return the status (`not started`, `running`, `done` or `error`) and the errors."""
    try:
        with open(STATUS, encoding="utf-8") as file:
            word, _, problem = file.read().strip().partition(" ")
    except FileNotFoundError:
        return "not started", []
    return word or "running", [problem] if problem else []


def report(status: str, errors: list[str], style: str) -> None:
    detail = "; ".join(errors) or "DataSourceEc2Local"
    if style == "json":
        keys = {"status": status, "extended_status": status, "detail": detail}
        print(json.dumps({**keys, "errors": errors, "recoverable_errors": {}}, indent=2))
        return
    print(f"status: {status}")
    if style == "long":
        print(f"extended_status: {status}\nboot_status_code: enabled-by-generator")
        print(f"detail:\n{detail}")
        print("errors:" + ("".join(f"\n\t- {error}" for error in errors) or " []"))
        print("recoverable_errors: {}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="cloud-init", description=__doc__)
    parser.add_argument("--version", "-v", action="version", version=VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser("status", description=f"{VERSION}: 0 done, 1 error.")
    status.add_argument("--wait", "-w", action="store_true")
    status.add_argument("--long", "-l", action="store_true")
    status.add_argument("--format", choices=["tabular", "json"], default="tabular")
    options = parser.parse_args()
    word, errors = read_status()
    while options.wait and word in ("not started", "running"):
        print(".", end="", flush=True) if options.format == "tabular" else None
        time.sleep(0.1)
        word, errors = read_status()
        if word not in ("not started", "running") and options.format == "tabular":
            print()
    report(word, errors, "json" if options.format == "json" else "long" if options.long else "")
    sys.exit(1 if word == "error" else 0)


main()
