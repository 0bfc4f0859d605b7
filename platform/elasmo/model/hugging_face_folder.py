"""The folders that imports and exports write: never over somebody's files, and whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elasmo.model.fragments import MANIFEST
from elasmo.model.hugging_face_defaults import HuggingFaceError

PARTIAL = ".partial"


def check_import_target(out: Path, folder: Path, replace: bool) -> None:
    """Refuses to write an import of `folder` over anything but an earlier import.

    Args:
        replace: whether an import of another folder may be replaced as well.

    Raises:
        HuggingFaceError: what is there instead.
    """
    if _is_free(out):
        return
    source = _imported_from(out)
    if source is None:
        raise HuggingFaceError(f"{out} is not empty and holds no imported model; name a new folder for the import.")
    if folder.resolve().is_relative_to(out.resolve()):
        raise HuggingFaceError(f"{folder} lies in {out}, which the import would replace; name another folder.")
    if source != str(folder.resolve()) and not replace:
        raise HuggingFaceError(
            f"{out} holds the model imported from {source or 'an unnamed folder'}; name another folder, or "
            "replace that model with --replace."
        )


def check_export_target(out: Path) -> None:
    """Refuses a folder with anything in it.

    Raises:
        HuggingFaceError: it is not empty, or a file.
    """
    if not _is_free(out):
        raise HuggingFaceError(f"{out} is not empty; name a new folder.")


def _is_free(out: Path) -> bool:
    if not out.is_dir():
        if out.exists() or out.is_symlink():
            raise HuggingFaceError(f"{out} is not a folder; name a new folder.")
        return True
    return all(entry.name == PARTIAL for entry in out.iterdir())


def _imported_from(out: Path) -> str | None:
    """The folder that a model was imported from, empty when it was not written down; None if there is no import."""
    try:
        manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        source = manifest["source"]
        return str(source.get("folder", "")) if "hugging_face" in source and "kept" in manifest else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


@contextmanager
def staged(out: Path, replaced: tuple[str, ...] = ()) -> Iterator[Path]:
    """A folder to write into, whose entries move to `out` in the end; after an error `out` is as it was.

    Args:
        replaced: entries of `out` that go away first; the first of them is what makes the folder count, and comes last.
    """
    made = not out.exists()
    partial = out / PARTIAL
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        for name in replaced:
            _remove(out / name)
        for entry in sorted(partial.iterdir(), key=lambda entry: entry.name in replaced[:1]):
            entry.rename(out / entry.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if made and out.is_dir() and not any(out.iterdir()):
            out.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def files_named() -> Iterator[None]:
    """Turns what the file system refuses into a sentence with the file's name.

    Raises:
        HuggingFaceError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise HuggingFaceError(
            f"{error.filename or 'A file'} cannot be read or written: {error.strerror or error}; name one that can."
        ) from None
