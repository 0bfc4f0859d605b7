"""OpenLineage events of ingestion and training: what was made from what, for catalogues such as Marquez or DataHub.

Events go to a file, one JSON object a line, or to an HTTP endpoint. Lineage itself does not rest on them, manifests
hold it: an endpoint that does not answer is said once and otherwise ignored.
"""

from __future__ import annotations

import datetime
import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasmo.data.manifest import Snapshot

logger = logging.getLogger(__name__)

NAMESPACE = "elasmo"
PRODUCER = "https://pypi.org/project/elasmo"
TIMEOUT_S = 3.0


class LineageEventsError(ValueError):
    """A `data.openlineage` that cannot be used."""


@dataclass(frozen=True)
class Artifact:
    """Something that a job reads or writes.

    Attributes:
        path: where it lies; its name in OpenLineage.
        version: what its bytes are called, such as a snapshot's id.
        columns: column -> type, by table where there are several.
        rows, bytes: of an output.
    """

    path: str
    version: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    rows: int | None = None
    bytes: int | None = None


def artifact(snapshot: Snapshot) -> Artifact:
    """A snapshot of the lake."""
    tables = snapshot.manifest["tables"]
    columns = {f"{name}.{c['name']}": c["type"] for name, table in tables.items() for c in table["schema"]}
    rows = sum(snapshot.tables().values())
    return Artifact(str(snapshot.path.resolve()), snapshot.id, columns, rows, snapshot.size_bytes())


class LineageEvents:
    """Where events go.

    Args:
        target: a file, an http(s) URL, or None, which emits nothing.

    Raises:
        LineageEventsError: openlineage-python is not installed, or the file cannot be written.
    """

    def __init__(self, target: str | None) -> None:
        self._client: Any = None
        self._target = target
        self._silent = False
        if target is not None:
            self._client = _client(target)

    @contextmanager
    def job(self, name: str, inputs: Sequence[Artifact]) -> Iterator[list[Artifact]]:
        """Emits START, and COMPLETE or FAIL at the end; the block appends what it made to the list it is given."""
        run_id, outputs = str(uuid.uuid4()), list[Artifact]()
        self._emit("START", name, run_id, inputs, ())
        try:
            yield outputs
        except BaseException as error:
            self._emit("FAIL", name, run_id, inputs, outputs, str(error) or type(error).__name__)
            raise
        self._emit("COMPLETE", name, run_id, inputs, outputs)

    def _emit(
        self,
        kind: str,
        name: str,
        run_id: str,
        inputs: Sequence[Artifact],
        outputs: Sequence[Artifact],
        error: str | None = None,
    ) -> None:
        if self._client is None:
            return
        try:
            self._client.emit(_event(kind, name, run_id, inputs, outputs, error))
        except Exception as problem:  # whatever a transport raises, the data is made all the same
            if not self._silent:
                logger.warning(
                    "data.openlineage: %s takes no events (%s); lineage is in the lake.", self._target, problem
                )
            self._silent = True


def _client(target: str) -> Any:
    try:
        from openlineage.client import OpenLineageClient
        from openlineage.client.transport.file import FileConfig, FileTransport
        from openlineage.client.transport.http import HttpConfig, HttpTransport
    except ModuleNotFoundError:
        raise LineageEventsError(
            "data.openlineage needs the package openlineage-python; pip install 'elasmo[openlineage]'."
        ) from None
    if target.startswith(("http://", "https://")):
        return OpenLineageClient(transport=HttpTransport(HttpConfig(url=target, timeout=TIMEOUT_S, retry={"total": 0})))
    try:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).open("a").close()
    except OSError as error:
        raise LineageEventsError(
            f"data.openlineage={target} cannot be written: {error.strerror}; name a file."
        ) from None
    return OpenLineageClient(transport=FileTransport(FileConfig(log_file_path=target, append=True)))


def _event(
    kind: str, name: str, run_id: str, inputs: Sequence[Artifact], outputs: Sequence[Artifact], error: str | None
) -> Any:
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import error_message_run, output_statistics_output_dataset

    facets: dict[str, Any] = {}
    if error is not None:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message=error, programmingLanguage="python")
    made = [
        OutputDataset(
            namespace="file",
            name=output.path,
            facets=_facets(output),
            outputFacets={
                "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                    rowCount=output.rows, size=output.bytes
                )
            }
            if output.rows is not None
            else {},
        )
        for output in outputs
    ]
    return RunEvent(
        eventType=RunState[kind],
        eventTime=datetime.datetime.now(datetime.UTC).isoformat(),
        producer=PRODUCER,
        run=Run(runId=run_id, facets=facets),
        job=Job(namespace=NAMESPACE, name=name),
        inputs=[InputDataset(namespace="file", name=source.path, facets=_facets(source)) for source in inputs],
        outputs=made,
    )


def _facets(item: Artifact) -> dict[str, Any]:
    from openlineage.client.facet_v2 import dataset_version_dataset, schema_dataset

    facets: dict[str, Any] = {}
    if item.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=item.version)
    if item.columns:
        fields = [schema_dataset.SchemaDatasetFacetFields(name=n, type=t) for n, t in item.columns.items()]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=fields)
    return facets
