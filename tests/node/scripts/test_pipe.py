"""Streams into FIFOs: no record is lost, doubled or truncated, whatever S3 does or which process
dies."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterctl.node import objects as s3
from clusterctl.node.objects import NotStreamed, ObjectReader, signed
from clusterctl.node.scripts import pipe
from tests.copy.buckets import KEYS, one_bucket, s3_server
from tests.lab.running import wait_until

CHECKOUT = Path(__file__).parents[3]
PROGRAM = """\
import os, sys
sys.path.insert(0, {checkout!r})
from clusterctl.node.scripts.pipe import feed
from pathlib import Path
import json
feed(json.loads({contract!r}), Path({folder!r}), {rank}, {ranks})
os.execv(sys.executable, [sys.executable, "-u", "-c", {code!r}])
"""


@pytest.fixture
def bucket(monkeypatch):
    with one_bucket({}) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", made.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["access"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["secret"])
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield made


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(pipe, "PART_BYTES", 1000)
    monkeypatch.setattr(s3.time, "sleep", lambda wait_s: None)


def channel_of(**options):
    channel = {"source": "s3://bucket/x/", "mode": "Pipe", **options}
    return {**channel, **pipe.list_channel(channel)}


def told(channel, epoch=0, rank=0, ranks=1) -> bytes:
    parts = pipe.stream(pipe.source_of(channel), pipe.order(channel, epoch, rank, ranks))
    return b"".join(pipe.epoch_of(channel, parts))


def record(data: bytes) -> bytes:
    """Return the data as a RecordIO record."""
    return struct.pack("<II", 0xCED7230A, len(data)) + data + bytes(-len(data) % 4)


def members(data: bytes, chance: random.Random) -> bytes:
    """Compress the data by gzip, in one to four members."""
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(4)))
    pieces = zip([0, *cuts], [*cuts, len(data)])
    return b"".join(gzip.compress(data[a:b], chance.choice((0, 6))) for a, b in pieces)


def test_a_model_of_what_arrives(bucket, small_parts, monkeypatch):
    monkeypatch.setattr(s3, "ATTEMPTS", 100)  # because half of the answers are faults
    chance = random.Random(7)
    for trial in range(25):
        plain = {
            f"x/{n}/{chance.random()}": chance.randbytes(
                chance.choice((0, 1, 999, 1000, 1001, chance.randrange(20_000)))
            )
            for n in range(chance.randrange(1, 9))
        }
        packed, in_records = chance.choice((False, True)), chance.choice((False, True))
        told_as = {name: record(data) if in_records else data for name, data in plain.items()}
        bucket.objects = {
            name: members(data, chance) if packed else data for name, data in plain.items()
        }
        bucket.objects["x-beside"] = b"not asked for"
        bucket.faults = lambda: chance.choice((None, None, None, 503, 500, chance.randrange(1000)))
        names = sorted(name for name in bucket.objects if name.startswith("x/"))
        seed = chance.choice((None, trial))
        channel = channel_of(
            shuffle_seed=seed,
            compression="Gzip" if packed else "None",
            record_wrapping="RecordIO" if in_records else "None",
        )
        ranks = chance.randrange(1, 4)
        for epoch in range(2):
            shuffled = [name for name, _, _ in pipe.order(channel, epoch, 0, 1)]
            assert (sorted(shuffled), seed is None) == (names, seed is None)
            assert seed is not None or shuffled == names
            whole = b"".join(told_as[name] for name in shuffled)
            assert told(channel, epoch) == whole
            for rank in range(ranks):
                own = {**channel, "distribution": "ShardedByS3Key"}
                shard = b"".join(told_as[name] for name in shuffled[rank::ranks])
                assert told(own, epoch, rank, ranks) == shard
    seeded = {**channel, "shuffle_seed": 1, "objects": [[str(n), 0, ""] for n in range(99)]}
    assert pipe.order(seeded, 0, 0, 1) != pipe.order(seeded, 1, 0, 1)


def test_what_is_packed_and_wrapped(bucket, small_parts):
    chance = random.Random(3)
    plain = [chance.randbytes(size) for size in (0, 1, 5, 4000, 9999)]
    plain.append(bytes(50_000))
    packed = [gzip.compress(data[:7]) + gzip.compress(data[7:]) + bytes(9) for data in plain]
    wrapped = b"".join(map(record, plain))
    bucket.objects = {f"x/{n}": data for n, data in enumerate(plain)}
    assert told(channel_of(record_wrapping="RecordIO")) == wrapped
    bucket.objects = {f"x/{n}": data for n, data in enumerate(packed)}
    assert told(channel_of(compression="Gzip")) == b"".join(plain)
    assert told(channel_of(compression="Gzip", record_wrapping="RecordIO")) == wrapped
    for wrong in (packed[3][:-10], packed[3][:2000], b"plain"):
        bucket.objects["x/3"] = wrong
        with pytest.raises(NotStreamed, match="x/3"):
            told(channel_of(compression="Gzip"))


def test_objects_that_change_and_vanish_and_never_come(bucket, small_parts):
    def first(key, at):
        bucket.objects["x/b"] = b"B" * 5000

    def gone(key, at):
        bucket.objects.pop("x/b", None)

    for happens, says in ((first, "x/b has changed"), (gone, "x/b is no longer there")):
        bucket.objects = {"x/a": b"a" * 100, "x/b": b"b" * 5000}
        channel = channel_of()
        bucket.before = happens
        with pytest.raises(NotStreamed, match=says):
            told(channel)
        bucket.before = lambda key, at: None
        bucket.objects = {"x/b": b""}
        channel = channel_of()
        happens("", 0)
        with pytest.raises(NotStreamed, match=says):
            told(channel)
    bucket.objects = {"x/a": b"a" * 100}
    channel = channel_of()
    bucket.faults = lambda: 503
    with pytest.raises(NotStreamed, match="gave up after 12 attempts: s3://.*/a: S3 responded 503"):
        told(channel)


def test_signatures_are_botocores():
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    for path, query in (
        ("/bucket/a%20b/%C3%A9~-_.%2B%3D", ""),
        ("/bucket/", "list-type=2&prefix=a%2Fb%20c"),
    ):
        for token in ("", "to/ken+="):
            url = f"http://host:99{path}" + (f"?{query}" if query else "")
            request = AWSRequest("GET", url, headers={"Range": "bytes=0-9", "If-Match": '"e"'})
            S3SigV4Auth(Credentials("AK", "SK", token or None), "s3", "eu-west-1").add_auth(request)
            headers = {name: request.headers[name] for name in ("Range", "If-Match")}
            ours = signed(
                ("AK", "SK", token),
                "eu-west-1",
                path,
                query,
                {"host": "host:99", **{name.lower(): text for name, text in headers.items()}},
                request.headers["X-Amz-Date"],
            )
            assert ours["authorization"] == request.headers["Authorization"]


def test_a_listing_of_many_pages(monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "7")
    with s3_server() as server:
        # Keys with a control character, which XML does not have, and with what URLs encode.
        keys = [f"train/{n:04} é+%20\x08" for n in range(20)]
        name = server.bucket({key: b"%d" % n for n, key in enumerate(keys)})
        server.client.put_object(Bucket=name, Key="train/folder/", Body=b"")
        server.client.put_object(Bucket=name, Key="train-2/x", Body=b"")
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["access"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["secret"])
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        channel = {"source": f"s3://{name}/train", "mode": "Pipe"}
        channel.update(pipe.list_channel(channel))
        assert [one[0] for one in channel["objects"]] == keys
        assert told(channel) == b"".join(b"%d" % n for n in range(20))
        # As copy does, and so a channel of files: the object of that very name alone.
        server.client.put_object(Bucket=name, Key="train", Body=b"alone")
        assert [one[0] for one in pipe.list_channel(channel)["objects"]] == ["train"]
        below = {**channel, "source": f"s3://{name}/train/"}
        assert [one[0] for one in pipe.list_channel(below)["objects"]] == keys
        with pytest.raises(NotStreamed, match="no such bucket"):
            ObjectReader({"source": "s3://none-of-ours/x"}).list_all()


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("eu-west-1", "bucket.s3.eu-west-1.amazonaws.com"),
        ("cn-north-1", "bucket.s3.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_the_host_of_a_region(region, host, monkeypatch):
    def refused(where, **how):
        raise NotStreamed(where)

    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setattr(s3.http.client, "HTTPSConnection", refused)
    with pytest.raises(NotStreamed) as raised:
        ObjectReader({"source": "s3://bucket/x", "region": region, "unsigned": True}).list_all()
    assert str(raised.value) == host


def test_a_listing_that_is_no_xml(bucket):
    # This server does not encode keys, as some beside Amazon's do not.
    bucket.objects = {"x/\x01": b""}
    with pytest.raises(NotStreamed, match="what S3 lists of s3://bucket/x/ is no XML"):
        channel_of()


# Processes


@contextlib.contextmanager
def running(channel, base, code, rank=0, ranks=1):
    """Start a program that reads its FIFOs in base/input/pipes/0, as rank.py does."""
    folder = base / "input" / "pipes" / str(rank)
    (base / "output").mkdir(exist_ok=True)
    text = PROGRAM.format(
        checkout=str(CHECKOUT),
        contract=json.dumps({"channels": {"train": channel}}),
        folder=str(folder),
        rank=rank,
        ranks=ranks,
        code=f"import os\nos.chdir({str(folder)!r})\n{code}",
    )
    with subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            wait_until(lambda: not children(process.pid), "the feeders to end")


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return []


def folder_channel(tmp_path, sizes=(3_000_000, 0, 500)):
    chance = random.Random(5)
    (tmp_path / "data" / "deep").mkdir(parents=True)
    for n, size in enumerate(sizes):
        (tmp_path / "data" / ("deep" if n % 2 else ".") / f"part-{n}").write_bytes(
            chance.randbytes(size)
        )
    channel = {"source": str(tmp_path / "data"), "mode": "Pipe"}
    channel.update(pipe.list_channel(channel))
    data = b"".join((tmp_path / "data" / one[0]).read_bytes() for one in channel["objects"])
    return channel, data


def test_epochs_readers_that_stop_early_and_programs_that_do_not_read(tmp_path):
    channel, data = folder_channel(tmp_path)
    code = """
import hashlib
for epoch in range(2):
    print(hashlib.md5(open(f"train_{epoch}", "rb").read()).hexdigest())
open("train_2", "rb").close()
with open("train_3", "rb") as early: early.read(10)
with open("train_4", "rb", 0) as slow: print(len(slow.read(1)))
print(hashlib.md5(open("train_5", "rb").read()).hexdigest())
"""
    whole = hashlib.md5(data).hexdigest()
    with running(channel, tmp_path, code) as process:
        out, err = process.communicate(timeout=240)
        assert (out.decode().split(), err) == ([whole, whole, "1", whole], b"")
    with running(channel, tmp_path, "print('no reader')") as process:
        assert (process.communicate(timeout=240), process.returncode) == ((b"no reader\n", b""), 0)


def is_dead(pid):
    try:
        return pipe.read_stat(f"/proc/{pid}")[1][0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize("who", ["writer", "feeder", "both"])
def test_a_writer_that_dies_is_no_end_of_an_epoch(tmp_path, who):
    channel, data = folder_channel(tmp_path, (3_000_000,))
    code = """
with open("train_0", "rb") as file:
    file.read(100_000)
    print("reads", flush=True)
    os.read(0, 1)  # until the signals are sent
    n = len(file.read())
    print("whole", n, flush=True)
"""
    with running(channel, tmp_path, code) as process:
        assert process.stdout.readline() == b"reads\n"
        [feeder] = children(process.pid)
        [writer] = children(feeder)
        victims = {"writer": [writer], "feeder": [feeder], "both": [feeder, writer]}[who]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        # Else the writer may have written the whole epoch before the feeder is dead.
        wait_until(lambda: all(map(is_dead, victims)), "the processes to die")
        out, err = process.communicate(timeout=240)
    assert (out, process.returncode) == (b"", -signal.SIGKILL), err
    if who == "both":
        return  # no process is left that could report it
    assert f"its {who}".encode() in err
    assert b"the program is killed" in err
    assert (tmp_path / "output" / "failure").read_bytes() == err


def test_an_object_that_changes_ends_the_program(bucket, tmp_path):
    bucket.objects = {f"x/{n}": os.urandom(8_000_000) for n in range(12)}
    channel = channel_of()
    code = """
with open("train_0", "rb") as file:
    print(file.read(1) != b"", flush=True)
    os.read(0, 1)
    print("whole", len(file.read()), flush=True)
"""
    with running(channel, tmp_path, code) as process:
        process.stdout.readline()
        bucket.objects["x/9"] = b"other"  # the last by name, which is not fetched ahead yet
        out, err = process.communicate(timeout=240)
    assert (out, process.returncode) == (b"", -signal.SIGKILL), err
    says = "channel train, epoch 0: s3://bucket/x/9 has changed since it was listed"
    assert says in err.decode()
    assert err.count(b"\n") == 1


@pytest.mark.parametrize("address", ["bad", "http://[::1", "http://h:x/"])
def test_an_address_of_no_metadata_service(monkeypatch, address):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", address)
    with pytest.raises(OSError, match="is no metadata service: "):
        s3.metadata("meta-data/placement/region")


def test_a_folders_links(tmp_path):
    data, other = tmp_path / "data", tmp_path / "other"
    for place in (data / "deep", other):
        place.mkdir(parents=True)
        (place / "file").write_bytes(place.name.encode())
    (data / "linked").symlink_to(other)
    (data / "deep" / "back").symlink_to("..")
    channel = {"source": str(data), "mode": "Pipe"}
    channel.update(pipe.list_channel(channel))
    assert told(channel) == b"deepother"
    (data / "nowhere").symlink_to("gone")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        pipe.list_channel(channel)


def test_a_folder_that_is_another_on_this_node(tmp_path):
    channel, _ = folder_channel(tmp_path)
    (tmp_path / "data" / "part-0").write_bytes(b"less")
    with pytest.raises(NotStreamed, match="part-0 has 4 bytes, not 3000000"):
        pipe.source_of(channel)
    (tmp_path / "data" / "part-0").unlink()
    with pytest.raises(NotStreamed, match="part-0: No such file"):
        pipe.source_of(channel)
    (tmp_path / "data" / "part-0").write_bytes(bytes(3_000_000))
    source = pipe.source_of(channel)
    time.sleep(0.02)  # so that the times differ
    (tmp_path / "data" / "part-0").write_bytes(bytes(3_000_000))
    with pytest.raises(NotStreamed, match="part-0 has changed"):
        source.read("part-0", "", 0, 10)
