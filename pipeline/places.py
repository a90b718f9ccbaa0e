"""Files and folders of commands that need Spark only for a URI.

A path is read and written by this process, without Spark. The first URI starts Spark, with one
core, and the block's end stops it; a session that runs already is used, and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, TypeVar

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


@contextmanager
def open_places(app_name: str, conf: Sequence[str]) -> Iterator[Places]:
    """Files and folders by path or URI, inside the block; Spark ends with it where it was started.

    `conf` are Spark settings as `spark.NAME=VALUE`; `app_name` is shown by Spark.
    """
    with ExitStack() as stack:
        yield Places(app_name, conf, stack)


class Places:
    """Reads and writes what a path or a URI names; `stack` has what is to end."""

    def __init__(self, app_name: str, conf: Sequence[str], stack: ExitStack) -> None:
        self._app_name, self._conf, self._stack = app_name, conf, stack
        self._spark: SparkSession | None = None

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
