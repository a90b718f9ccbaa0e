"""Files and folders of commands that need Spark only for a URI.

A path is read and written by this process, without Spark. The first URI starts Spark, with one
core, and the block's end stops it; a session that runs already is used, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, Self, TypeVar

from keylane.pipeline.storage import (
    Folder,
    load_stored,
    local_path,
    open_folder,
    scheme_of,
    split_file,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER: Final = "local[1]"
"""Files of some MB are read and written by the driver alone."""
Parsed = TypeVar("Parsed")


class Places:
    """A context, inside which files and folders are reached by path or URI."""

    def __init__(self, app_name: str, conf: Sequence[str]) -> None:
        """`conf` are Spark settings as `spark.NAME=VALUE`; `app_name` is shown by Spark."""
        self._app_name, self._conf = app_name, conf
        self._spark: SparkSession | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)

    def folder(self, text: str) -> Folder:
        """The folder of a path or URI. Raises: as `storage.open_folder`, SparkUnavailable."""
        return open_folder(text, self._spark_for(text))

    def file_in(self, text: str, name: str) -> str:
        """Return the place of a file, for which its folder may stand, by path or URI.

        A URI is the file's where it ends as `name` does.
        """
        if scheme_of(text) is not None:
            is_folder = not text.endswith(PurePath(name).suffix)
        else:
            text = local_path(text)
            is_folder = Path(text).is_dir()
        return f"{text.rstrip('/')}/{name}" if is_folder else text

    def load(self, text: str, parse: Callable[[bytes], Parsed], bytes_max: int) -> Parsed:
        """Return what `parse` makes of a file. Raises: as `storage.load_stored`."""
        return load_stored(text, parse, bytes_max, self._spark_for(text))

    def write(self, text: str, data: bytes) -> None:
        """Put a file in place of what was there. Raises: StorageFailed, and as `folder`."""
        folder, name = split_file(text)
        self.folder(folder).write(name, data)

    def _spark_for(self, text: str) -> SparkSession | None:
        if scheme_of(text) is not None and self._spark is None:
            from keylane.pipeline.needs import check_pyspark

            check_pyspark()
            from pyspark.sql import SparkSession

            from keylane.pipeline.arguments import start_session

            self._spark = SparkSession.getActiveSession()
            if self._spark is None:
                session = start_session(self._app_name, master=MASTER, conf=self._conf)
                self._spark = self._stack.enter_context(session)
        return self._spark
