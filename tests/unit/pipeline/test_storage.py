"""pipeline/storage.py and places.py: paths of this machine, without Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from keylane.errors import ConfigInvalid, StorageFailed
from keylane.pipeline.job import python_cause
from keylane.pipeline.places import open_places
from keylane.pipeline.storage import LocalFolder, load_stored, open_folder, scheme_of, split_file


def test_paths_and_file_uris_are_of_this_machine(tmp_path: Path) -> None:
    """A file URI is unquoted, as Hadoop has it; a Spark reader gets the same text back."""
    cases = ["relative/x", str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}/a%20b"]

    folders = [open_folder(text) for text in cases]

    assert [scheme_of(text) for text in cases] == [None] * 4
    assert [str(folder) for folder in folders[1:]] == [*[str(tmp_path)] * 2, f"{tmp_path}/a%20b"]
    assert folders[3].uri == f"file://{tmp_path}/a%20b"
    assert folders[0].uri == f"file://{Path.cwd()}/relative/x"
    assert scheme_of("S3A://bucket/x") == "s3a"
    assert split_file(f"file://{tmp_path}/x.json") == (str(tmp_path), "x.json")
    assert split_file("s3a://bucket/a/x.json") == ("s3a://bucket/a", "x.json")


def test_a_local_folder_reads_replaces_and_removes(tmp_path: Path) -> None:
    """None where there is no file; nothing beside it is left over."""
    folder = LocalFolder(tmp_path).child("a")
    missing = folder.read("x", 3), folder.names()
    folder.write("x", b"one")
    folder.write("x", b"two")
    folder.child("b").write("y", b"")

    found = folder.read("x", 3), folder.names()
    with pytest.raises(ConfigInvalid, match="larger than 2 bytes"):
        folder.read("x", 2)
    folder.delete("b")
    folder.delete("b")

    assert missing == (None, set())
    assert found == (b"two", {"x", "b"})
    assert folder.names() == {"x"}


def test_a_local_folder_that_fails_names_the_place(tmp_path: Path) -> None:
    """A file in the place of the folder, and a folder in the place of the file."""
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder" / "x").mkdir(parents=True)
    file, folder = LocalFolder(tmp_path / "file"), LocalFolder(tmp_path / "folder")

    for work, text in (
        (lambda: file.write("x", b""), "file/x: File exists|file/x: Not a directory"),
        (file.names, "file: Not a directory"),
        (lambda: file.delete("x"), "file/x: Not a directory"),
        (lambda: folder.read("x", 1), "folder/x: Is a directory"),
    ):
        with pytest.raises(StorageFailed, match=text):
            work()


def test_what_is_stored_is_parsed_with_its_place(tmp_path: Path) -> None:
    """A missing file, and one that the parser refuses, are named; a URI needs Spark."""

    def refuse(data: bytes) -> None:
        raise ConfigInvalid(f"{len(data)} bytes")

    (tmp_path / "x").write_bytes(b"abc")

    assert load_stored(f"file://{tmp_path}/x", bytes.decode, 3) == "abc"
    for text, reason in ((f"{tmp_path}/x", "3 bytes"), (f"{tmp_path}/y", "No such file")):
        with pytest.raises(ConfigInvalid, match=f"{text}: {reason}"):
            load_stored(text, refuse, 3)
    with pytest.raises(ConfigInvalid, match="s3a://b: only Spark reads URIs"):
        load_stored("s3a://b/x", refuse, 3)


def test_a_path_starts_no_spark(tmp_path: Path) -> None:
    """`keylane plan` of local files takes the time of a Python program."""
    (tmp_path / "x").write_bytes(b"abc")
    program = (
        "import sys\n"
        "from keylane.pipeline.places import open_places\n"
        "with open_places('x', []) as places:\n"
        "    places.write(sys.argv[1] + '/y', places.load(sys.argv[1] + '/x', bytes, 9))\n"
        "assert not [name for name in sys.modules if name.startswith('pyspark')]\n"
    )

    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)

    assert (tmp_path / "y").read_bytes() == b"abc"


def test_a_folder_stands_for_its_file(tmp_path: Path) -> None:
    """By what is there, of a path; by the end of the name, of a URI."""
    with open_places("x", []) as places:
        found = [
            places.file_in(text, "profile.json")
            for text in (
                str(tmp_path),
                f"file:{tmp_path}/",
                "none.json",
                "s3a://b/p/",
                "s3a://b/o.json",
            )
        ]

    inside = f"{tmp_path}/profile.json"
    assert found == [inside, inside, "none.json", "s3a://b/p/profile.json", "s3a://b/o.json"]


def test_the_innermost_python_error_is_the_cause() -> None:
    """Spark's text has the traceback of the driver, and within it that of the worker."""
    worker = (
        'Traceback (most recent call last):\n  File "x"\nkeylane.errors.StorageFailed: /x: no\n'
    )
    text = (
        'STREAM_FAILED: Traceback (most recent call last):\n  File "y"\npyspark.PythonException: \n'
        f"  An exception was thrown: {worker}\tat org.apache.Spark\nDriver stacktrace:\n\tat x"
    )

    assert python_cause(text) == "/x: no"
    assert python_cause("Traceback (most recent call last):\n  x\nValueError: two") == (
        "ValueError: two"
    )
    assert python_cause("no traceback") is None
