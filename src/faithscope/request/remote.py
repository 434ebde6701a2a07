"""Folders on other machines: what a run needs of a path, on any file system that fsspec knows.

    s3://bucket/run    gs://bucket/run    memory://run

fsspec is imported when the first such address is used. Every request is tried a few times, since a
network is not a disk: what still fails then is an `OSError` with a reason in words, and never looks
like a file that is not there. Only the address is kept, so what travels to another process or into
a message holds no credentials: the file system's own library finds those (environment, profile).
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, TypeVar

from faithscope.errors import FaithscopeError, shown, unknown

T = TypeVar("T")

PAUSES = (0.2, 0.6, 1.8)
"""Seconds between the tries of a request."""
ADDRESS = re.compile(r"([\w+.:-]+)://(.*)", re.DOTALL)
_FOUND_OUT = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
"""Answers: to ask again would not change them."""
_MAGIC = "*?[]#"
"""Signs that some file systems take for a pattern or for options."""
BUCKETS = set("s3 s3a gs gcs az abfs abfss adl oss obs cos tos oci".split())
"""Object stores: an address begins with a bucket, which must be there; folders need not be made."""
_ON_S3 = {
    "use_listings_cache": False,
    "max_concurrency": 1,  # else a look at the size comes before every read
    "config_kwargs": {
        "connect_timeout": 5,
        "read_timeout": 20,
        "retries": {"max_attempts": 0},  # we try again ourselves
    },
}
_OPTIONS: Mapping[str, Mapping[str, Any]] = {"s3": _ON_S3, "s3a": _ON_S3}


@dataclass(frozen=True, order=True)
class RemotePath:
    """A file or folder at an address; it has those methods of `pathlib.Path` that runs use."""

    address: str

    def __str__(self) -> str:
        return self.address

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.address}/{name}") if name else self

    @property
    def name(self) -> str:
        return self.address.rpartition("/")[2]

    @property
    def stem(self) -> str:
        return self.name.rpartition(".")[0] or self.name

    @property
    def suffix(self) -> str:
        return self.name[len(self.stem) :]

    @property
    def parent(self) -> RemotePath:
        above = self.address.rpartition("/")[0]
        return self if above.endswith("/") else RemotePath(above)

    def resolve(self) -> RemotePath:
        """Itself: an address has no links."""
        return self

    # Looking

    def exists(self) -> bool:
        return self._info() is not None

    def is_dir(self) -> bool:
        info = self._info()
        return info is not None and info["type"] == "directory"

    def is_file(self) -> bool:
        info = self._info()
        return info is not None and info["type"] == "file"

    def iterdir(self) -> Iterator[RemotePath]:
        return iter(self._list("ls"))

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """What fits a pattern, whose parts may have * and [] in them; ** stands for all below."""
        first, _, rest = pattern.partition("/")
        if first == "**":
            yield from (path for path in self._list("find") if fnmatchcase(path.name, rest))
            return
        if not set(first) & set(_MAGIC):
            found = [self / first] if rest or (self / first).exists() else []
        else:
            found = [path for path in self._list("ls") if fnmatchcase(path.name, first)]
        for path in found:
            yield from path.glob(rest) if rest else (path,)

    def read_bytes(self) -> bytes:
        content: bytes = self._ask(lambda: self._system.cat_file(self._key))
        return content

    # Changing

    def write_bytes(self, content: bytes) -> None:
        """Put a file there; an object store does so in one step."""
        self._ask(lambda: self._put(content))

    def create(self, content: bytes) -> bool:
        """Put a file there unless there is one; whether there was none.

        S3 and Google's store decide that themselves, in one step (on S3 a PUT with If-None-Match).
        Where that is not known, fsspec looks first and writes then, so of two that do so at the
        very same moment both may believe to be the first: what is there after a moment says who
        was the last.
        """

        def once() -> bool:
            try:
                self._put(content, mode="create")
            except (OSError, TypeError, NotImplementedError) as error:
                if isinstance(error, FileNotFoundError | PermissionError):
                    raise
                try:  # an earlier try may have come through, with its answer lost
                    return bool(self._system.cat_file(self._key) == content)
                except FileNotFoundError:
                    if isinstance(error, OSError) and error.errno != errno.ENOSYS:
                        raise error from None
                self._put(content)  # nothing is there, and it cannot be told to look itself
            return True

        if not self._ask(once):
            return False
        time.sleep(PAUSES[0])
        return self.read_bytes() == content

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self._ask(lambda: self._system.rm_file(self._key))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: folders come with the files in them."""

    def remove_tree(self) -> None:
        """Remove all below."""
        if files := self._list("find"):
            self._ask(lambda: self._system.rm([path._key for path in files]))

    def check_reachable(self) -> None:
        """An OSError if its bucket is not there, or cannot be reached."""
        if self._is_in_bucket and self._top._info() is None:
            raise self._no_bucket()

    # The file system

    @property
    def _is_in_bucket(self) -> bool:
        return self.address.partition("://")[0] in BUCKETS

    def _no_bucket(self) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, f"there is no '{self._top}'", str(self))

    @property
    def _top(self) -> RemotePath:
        scheme, _, rest = self.address.partition("://")
        return RemotePath(f"{scheme}://{rest.partition('/')[0]}")

    @property
    def _system(self) -> Any:
        return _file_system(str(self._top), os.getpid())

    @property
    def _key(self) -> str:
        return str(self._system._strip_protocol(self.address))

    def _info(self) -> Mapping[str, Any] | None:
        self._system.invalidate_cache()
        try:
            found: Mapping[str, Any] = self._ask(lambda: self._system.info(self._key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found

    def _list(self, how: str) -> list[RemotePath]:
        """What is in a folder ("ls") or anywhere below ("find"); nothing if it is not there."""
        key = self._key.rstrip("/")

        def names() -> list[str]:
            self._system.invalidate_cache()
            found = getattr(self._system, how)(key, detail=False)
            return [str(name).rstrip("/") for name in found]

        try:
            found = self._ask(names)
        except (FileNotFoundError, NotADirectoryError):
            return []
        inside = {name[len(key) + 1 :] for name in found if name.startswith(f"{key}/")}
        return [self / name for name in sorted(inside - {""})]

    def _put(self, content: bytes, **how: Any) -> None:
        try:
            self._system.pipe_file(self._key, content, **how)
        except FileNotFoundError:
            if self._is_in_bucket:
                raise self._no_bucket() from None
            self._system.makedirs(self.parent._key, exist_ok=True)
            self._system.pipe_file(self._key, content, **how)

    def _ask(self, request: Callable[[], T]) -> T:
        """Make a request, and make it again if the answer is none."""
        for pause in (*PAUSES, None):
            try:
                return request()
            except _FOUND_OUT as error:
                number = errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EEXIST
                number = error.errno or number
                why = error.strerror or os.strerror(number)
                raise type(error)(number, why, str(self)) from None
            except PermissionError:
                raise PermissionError(
                    errno.EACCES, "access is denied with these credentials", str(self)
                ) from None
            except Exception as error:  # whatever its library says of connections and credentials
                if pause is None:
                    why = getattr(error, "strerror", None) or type(error).__name__
                    raise OSError(errno.EIO, str(why), str(self)) from None
                time.sleep(pause)
        raise AssertionError


@lru_cache(maxsize=64)
def _file_system(top: str, process: int) -> Any:
    """The file system of an address, one for each process: none of them survives a fork."""
    import fsspec.core

    options = _OPTIONS.get(top.partition("://")[0], {})
    system, _ = fsspec.core.url_to_fs(top, skip_instance_cache=True, **options)
    if hasattr(system, "retries"):
        system.retries = 1  # we try again ourselves
    return system


def remote_path(text: str, what: str) -> RemotePath:
    """The path of an address, "SCHEME://…"; refuse one of which no file system is known here."""
    match = ADDRESS.fullmatch(text)
    assert match is not None
    scheme, rest = match[1].lower(), match[2]
    host = rest.partition("/")[0]
    if ":" in host.rpartition("@")[0]:
        raise FaithscopeError(
            f"{what} holds a password: leave it out, and give it as the file system's library "
            "takes it (a variable of the environment or a profile)."
        )
    parts = [part for part in rest.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or set(rest) & set(_MAGIC):
        raise FaithscopeError(
            f"{what} {shown(text)} is no address of a folder, such as {scheme}://BUCKET/RUN: none "
            f"has '..' or one of {_MAGIC} in it."
        )
    _check_installed(scheme, text, what)
    root = "/" if rest.startswith("/") and scheme not in BUCKETS else ""  # no host: hdfs:///run
    return RemotePath(f"{scheme}://{root}{'/'.join(parts)}")


def _check_installed(scheme: str, text: str, what: str) -> None:
    from fsspec.registry import get_filesystem_class, known_implementations

    try:
        if scheme in ("http", "https"):
            raise ValueError
        get_filesystem_class(scheme)
    except ValueError:
        usual = ("s3", "gs", "az", "sftp", "hdfs", "memory")
        raise unknown("file system", scheme, usual) from None
    except ImportError:
        known = known_implementations[scheme]
        package = known["class"].partition(".")[0]
        how = known.get("err", "") if package == "fsspec" else f"pip install {package}"
        raise FaithscopeError(
            f"{what} {shown(text)} needs a package that is not installed: {how}."
        ) from None
