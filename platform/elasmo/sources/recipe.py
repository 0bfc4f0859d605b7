"""A source whose rows come from a Python recipe beside the contract: `inputs()`, `land()` and `samples(silver)`."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from elasmo.data.draft import Draft
from elasmo.sources.contract import CONTRACT_FILE, Contract, SplitRule, TableSpec
from elasmo.sources.source import Row, SilverRows, SourceError, landed_columns

FUNCTIONS = ("inputs", "land", "samples")


class RecipeSource:
    """Loads the recipe as a package of its own, so that it may import the modules beside it (`from .speech import`)."""

    def __init__(self, folder: Path, contract: Contract) -> None:
        self.folder = folder
        self.contract = contract
        self.path = folder / contract.recipe
        self.module = self._load()

    @property
    def tables(self) -> Mapping[str, TableSpec]:
        return self.contract.tables

    @property
    def splits(self) -> Mapping[str, SplitRule]:
        return self.contract.splits

    @property
    def code(self) -> tuple[ModuleType, ...]:
        return (sys.modules[__name__],)

    def describe(self) -> dict[str, dict[str, str]]:
        files = [self.folder / CONTRACT_FILE, *sorted(self.folder.glob("*.py"))]
        hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        with self._running("inputs"):
            return {"files": hashes, "inputs": dict(self.module.inputs())}

    def landed(self, table: str) -> dict[str, bool]:
        return landed_columns(self.tables[table])

    def land(self) -> Iterator[tuple[str, Row]]:
        with self._running("land"):
            for table, row in self.module.land():
                if table not in self.tables:
                    raise SourceError(
                        f"{self.path} landed a row in table {table!r}; the contract has {', '.join(self.tables)}."
                    )
                yield table, row

    def release(self) -> None:
        """Nothing was kept."""

    def parse(self, table: str, row: Row) -> Row:
        return row

    def drafts(self, silver: SilverRows) -> Iterator[Draft]:
        with self._running("samples"):
            yield from self.module.samples(silver)

    def _load(self) -> ModuleType:
        if not self.path.is_file():
            raise SourceError(f"{self.path} does not exist; the contract's `recipe` must name a file beside it.")
        name = f"elasmo_recipe_{hashlib.sha256(str(self.path.resolve()).encode()).hexdigest()[:12]}"
        for loaded in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
            del sys.modules[loaded]
        spec = importlib.util.spec_from_file_location(
            name, self.path, submodule_search_locations=[str(self.folder.resolve())]
        )
        if spec is None or spec.loader is None:
            raise SourceError(f"{self.path} is not a Python module; the contract's `recipe` must name a .py file.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise SourceError(f"{self.path} could not be loaded: {type(error).__name__}: {error}.") from error
        missing = [function for function in FUNCTIONS if not callable(getattr(module, function, None))]
        if missing:
            raise SourceError(f"{self.path} has no function {missing[0]}(); a recipe defines {', '.join(FUNCTIONS)}.")
        return module

    @contextmanager
    def _running(self, function: str) -> Iterator[None]:
        """Turns what a recipe raises into a sentence that names it."""
        try:
            yield
        except ModuleNotFoundError as error:
            raise SourceError(
                f"{self.path} needs the Python package {error.name!r}; install it (for the recipes of "
                "this repository: pip install 'elasmo[demo]')."
            ) from error
        except SourceError:
            raise
        except Exception as error:
            raise SourceError(f"{self.path}: {function}() failed: {type(error).__name__}: {error}.") from error
