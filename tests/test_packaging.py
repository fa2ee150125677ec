"""The package as a user installs it: what wheel and sdist hold, and that the programs run."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import clusterctl
from clusterctl.cli.main import COMMANDS
from tests.changes import CHECKOUT
from tests.lab.running import why_no_lab
from tests.programs import completed
from tests.pythons import python_or_skip

SHIPPED = "clusterctl/jobs/shipped-examples/"
ALL_HELP = """
from clusterctl.cli.main import COMMANDS, cli
for name in COMMANDS:
    cli([name, "--help"], "cctl", standalone_mode=False)
"""
LOG = CHECKOUT / "tests/explain/logs/10-horovod-not-built.txt"


def run(*argv, cwd="/", **more):
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, f"{argv}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def tracked() -> list[str]:
    """Return the repository's files, with those that `git add` would add."""
    listed = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = run(*listed, cwd=CHECKOUT).split("\0")
    return [name for name in names if name and (CHECKOUT / name).exists()]


def packaged() -> set[str]:
    """Return the files that a wheel has to hold: those of the package, and where its links lead."""
    found = set()
    links = {"examples/horovod/": SHIPPED, "utils/": "clusterctl/jobs/shipped-utils/"}
    for name in tracked():
        for folder, there in links.items():
            if name.startswith(folder):
                found.add(there + name[len(folder) :])
        if name.startswith("clusterctl/") and not (CHECKOUT / name).is_dir():
            found.add(name)
    return found


def own_environment(home: Path) -> dict[str, str]:
    """Return the environment of a user who has no checkout."""
    return {"HOME": str(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


def copied(folder: Path) -> Path:
    """Copy the repository's files into a folder, and return it."""
    names = "".join(f"{name}\0" for name in tracked())
    folder.mkdir()
    run("xargs", "-0", "cp", "--parents", "-a", "-t", str(folder), cwd=CHECKOUT, input=names)
    return folder


def test_an_installed_package_holds_every_file(tmp_path):
    source, built = copied(tmp_path / "source"), tmp_path / "built"
    setup = "import setuptools; setuptools.setup()"
    run(sys.executable, "-c", setup, "-q", "build", "--build-lib", str(built), cwd=source)
    files = {str(one.relative_to(built)) for one in built.rglob("*") if one.is_file()}
    assert files == packaged()
    assert not any(one.is_symlink() for one in built.rglob("*"))
    assert (built / SHIPPED / "tensorflow/train.sh").stat().st_mode & 0o111
    listed = (
        "from clusterctl.jobs.deploy import example_files as e; from clusterctl.cli.main import cli"
        "; print(*e(), sep='\\n'); cli(['--help'], 'cctl')"
    )
    told = run(sys.executable, "-c", listed, cwd=built).splitlines()
    assert "examples/horovod/tensorflow/train_imagenet_resnet_hvd.py" in told
    assert "examples/horovod/tensorflow/utils/preprocess_imagenet.py" in told
    assert "Usage: cctl [OPTIONS] COMMAND [ARGS]..." in told
    assert {"Clusters:", "Jobs:", "Diagnosis:"} <= set(told)
    assert sorted(line.split()[0] for line in told if line[:2] == "  ")[3:] == sorted(COMMANDS)


def new_environment(folder: Path, python: Path, *packages: str) -> Path:
    """Make a virtual environment with these packages. Return the folder of its programs."""
    run(str(python), "-m", "venv", str(folder))
    uv = Path(sys.executable).with_name("uv")  # a tenth of pip's processor time, if it is there
    pip = (str(uv), "pip", "install", "--python") if uv.exists() else ()
    installer = (*pip, str(folder / "bin/python")) if pip else (str(folder / "bin/pip"), "install")
    run(*installer, "-q", *packages)
    return folder / "bin"


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Return the folder of the sdist, and of the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "-o", str(folder), cwd=copied(folder / "source"))
    return folder


@pytest.mark.all
def test_the_sdist_has_the_whole_repository_and_the_wheel_the_whole_package(dist):
    [wheel], [sdist] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
        [entries] = [name for name in opened.namelist() if name.endswith("entry_points.txt")]
        programs = configparser.ConfigParser()
        programs.read_string(opened.read(entries).decode())
        modes = opened.getinfo(SHIPPED + "tensorflow/train.sh").external_attr >> 16
    assert names == packaged()
    assert set(programs["console_scripts"]) == {"clusterctl", "cctl", "runclust", "copyclust"}
    assert modes & 0o111
    with tarfile.open(sdist) as opened:
        members = {one.name.partition("/")[2]: one for one in opened.getmembers()}
    assert {name for name in tracked() if not (CHECKOUT / name).is_dir()} <= members.keys()
    assert members["scripts/test"].mode & 0o111
    assert not [name for name in members if "__pycache__" in name or name.startswith(".venv")]


@pytest.mark.all
@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13"])
def test_the_wheel_on_each_python(dist, tmp_path, version):
    """In a new virtual environment, without a checkout. Lab and trainings need newer Pythons."""
    lab = version != "3.9"  # moto 5.2 needs 3.10
    [wheel] = dist.glob("*.whl")
    python, home = python_or_skip(version), tmp_path / "home"
    place = new_environment(tmp_path / "venv", python, f"{wheel}[{'lab,' if lab else ''}plot,s3]")
    home.mkdir()
    environ = own_environment(home)

    def program(name, *words):
        return run(str(place / name), *words, env=environ, cwd=home)

    for name in ("clusterctl", "cctl"):
        assert program(name, "--version") == f"clusterctl, version {clusterctl.__version__}\n"
        assert f"Usage: {name} [OPTIONS]" in program(name, "--help")
    assert "Usage: python -m clusterctl" in program("python", "-m", "clusterctl", "-h")
    told = program("python", "-c", ALL_HELP)
    assert [name for name in COMMANDS if f"Usage: cctl {name} " not in told] == []
    for name in ("runclust", "copyclust"):
        assert f"Usage: {name} " in program(name, "--help")
    explained = completed([place / "clusterctl", "explain", LOG], env=environ)
    assert explained.returncode == 2, explained
    assert "Horovod" in explained.stdout
    if lab and not why_no_lab():
        try:
            program("clusterctl", "lab", "start")
            words = ("x", "--lab", "--nodes", "2", "--instance-type", "p3.2xlarge", "--dry-run")
            assert "p3.2xlarge" in program("clusterctl", "up", *words)
        finally:
            program("clusterctl", "lab", "stop")


def versions_of(path: str) -> list[str]:
    return re.findall(r"^## \[?(\d+\.\d+\.\d+)", (CHECKOUT / path).read_text(), re.MULTILINE)


def test_version_and_licence_are_the_same_everywhere():
    metadata = configparser.ConfigParser()
    metadata.read(CHECKOUT / "setup.cfg")
    citation = yaml.safe_load((CHECKOUT / "CITATION.cff").read_text())
    assert versions_of("CHANGELOG.md")[0] == clusterctl.__version__ == citation["version"]
    assert metadata["metadata"]["license_expression"] == citation["license"] == "Apache-2.0"


def test_the_workflow_runs_what_continuous_integration_runs():
    workflow = yaml.safe_load((CHECKOUT / ".github/workflows/ci.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    for step in steps:
        if "uses" in step:  # a branch's name would run other code tomorrow
            assert re.fullmatch(r"[\w-]+/[\w./-]+@v\d+\.\d+\.\d+", step["uses"]), step
    commands = [line for step in steps for line in step.get("run", "").splitlines()]
    assert ".ci/run" in commands
    assert os.access(CHECKOUT / ".ci/run", os.X_OK)


@pytest.mark.all
def test_the_site_builds_without_a_warning(tmp_path):
    """Strictly, so that each link and each anchor of README.md and docs/ leads somewhere."""
    wanted = configparser.ConfigParser()
    wanted.read(CHECKOUT / "setup.cfg")
    docs = wanted["options.extras_require"]["docs"].split()
    place = new_environment(tmp_path / "venv", Path(sys.executable), *docs)
    build = completed(
        [place / "mkdocs", "build", "-d", str(tmp_path / "site")],
        cwd=CHECKOUT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert build.returncode == 0, build.stderr
    assert "WARNING" not in build.stderr
    home = (tmp_path / "site" / "index.html").read_text()
    assert 'href="clusters/"' in home
    assert 'src="demo.svg"' in home
    assert 'href="../clusters/#host-keys"' in (tmp_path / "site/SECURITY/index.html").read_text()
