"""`keylane advise`: arguments, profiles, forms. Brokers are of the integration tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keylane.advise import reader
from keylane.assignor.profile import HeavyKey, LoadProfile, PartitionLoad, write_profile
from keylane.cli.main import main
from keylane.client.settings import ConsumerSettings
from keylane.errors import KafkaUnavailable
from tests.commands import parse_command


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10ms", 0.01),
        ("1.5s", 1.5),
        ("250us", 0.00025),
        ("30m", 1800),
        ("2h", 7200),
        ("7d", 604800),
    ],
)
def test_times_have_a_unit(text: str, seconds: float) -> None:
    """A number alone would be taken for milliseconds by some, for seconds by others."""
    assert parse_command(["advise", "--work", text]).work == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--work", "10"], "--work: '10' is no time above 0, such as 10ms, 1.5s, 30m, 2h or 7d"),
        (["--work", "0ms"], "--work: '0ms' is no time above 0, such as 10ms, 1.5s, 30m, 2h or 7d"),
        (["--topic", "t"], "--bootstrap: needed, or --profile in the place of a sample"),
        (["--bootstrap", "a:1"], "--topic: needed, or --profile in the place of a sample"),
        (["--plot", "a.pdf"], "--plot a.pdf: expected a name that ends in .svg or .png"),
        (["--profile", "none.json"], "none.json: No such file or directory"),
        (["--top", "t"], "no option --top; did you mean --topic?"),
    ],
)
def test_wrong_arguments_are_one_line(args, line, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is asked of a broker, and the exit code is 2."""
    code = main(["advise", *args])

    assert code == 2
    assert capsys.readouterr().err == f"keylane advise: {line}\n"


@pytest.mark.parametrize("wrong", ["localhost:abc", "localhost:", "[::1]:abc", "[::1:9092"])
def test_a_port_that_is_none_is_one_line(wrong, capsys: pytest.CaptureFixture[str]) -> None:
    """The address is named, among others that are right."""
    code = main(["advise", "--topic", "t", "--bootstrap", f"a:9092, {wrong}"])

    assert code == 2
    assert capsys.readouterr().err == f"keylane advise: --bootstrap {wrong}: expected HOST:PORT\n"


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1:9092", "::1", "[::1]", "[::1]:9092"])
def test_an_address_needs_no_port(address, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers are asked at it; here they do not answer."""
    asked: list[object] = []

    async def read(settings: ConsumerSettings, *_: object) -> None:
        asked.append(settings.bootstrap_servers)
        raise KafkaUnavailable(address)

    monkeypatch.setattr(reader, "read_evidence", read)

    assert main(["advise", "--topic", "t", "--bootstrap", address]) == 1
    assert asked == [address]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Two partitions of even buckets, and a key with a quarter of partition 0."""
    load = PartitionLoad(
        start=0,
        end=1_600,
        records=(100,) * 16,
        size_bytes=(10_000,) * 16,
        distinct_keys=300,
    )
    heavy = HeavyKey(partition=0, key_hash=12345, records=100, size_bytes=10_000)
    made = LoadProfile(topic="orders", bits=4, partitions=(load, load), heavy=(heavy,))
    (tmp_path / "profile.json").write_bytes(write_profile(made))
    return tmp_path


def test_a_profile_is_as_good_as_a_sample(profile, capsys: pytest.CaptureFixture[str]) -> None:
    """Its folder is named; counts are exact, so that there is no interval."""
    code = main(["advise", "--profile", str(profile), "--members", "8", "-o", "json"])

    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["speedup"]["parallel"] == pytest.approx(8, rel=0.11)
    assert found["speedup"]["ceiling"] == 32
    assert found["speedup"]["interval"] is None
    assert found["keys"]["distinct"] == 600
    assert found["keys"]["hot"] == [{"partition": 0, "key_hash": "12345", "share": 0.03125}]
    assert found["group"] is None


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--topic", "bills"], "is of topic orders, not bills"),
        (["--group", "billing"], "--group: a profile has no groups"),
    ],
)
def test_a_profile_that_does_not_fit_is_refused(args, words, profile, capsys) -> None:
    """The line names both topics, or the option that has no use."""
    code = main(["advise", "--profile", str(profile), *args])

    assert code == 2
    assert words in capsys.readouterr().err


def test_text_of_a_profile_has_a_command_to_fill_in(profile, capsys) -> None:
    """Nothing is known of brokers."""
    main(["advise", "--profile", str(profile), "--work", "10ms"])

    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("command    keylane proxy --bootstrap HOST:PORT --lanes orders=")
