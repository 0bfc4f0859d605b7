"""OpenLineage events: each layer names what it was made of, failures are told, and no endpoint can stop the data."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from elasmo.config import Config, load
from elasmo.data.gold import Gold
from elasmo.data.openlineage_events import LineageEvents, LineageEventsError
from elasmo.ingest.ingest import ingest
from elasmo.sources.source import SourceError
from tests.pets import config, pets  # noqa: F401


def to(config: Config, target: object) -> Config:  # noqa: F811
    return load(None, [f"data.lake={config.data.lake}", "data.vocab_size=300", f"data.openlineage={target}"], {})


@pytest.fixture
def received() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A catalogue: its URL and the events it was sent."""
    found: list[dict[str, Any]] = []

    class Catalogue(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/api/v1/lineage"
            found.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Catalogue)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", found
    server.shutdown()
    thread.join()
    server.server_close()


def test_each_layer_names_what_it_was_made_of(pets: Path, config: Config, tmp_path: Path) -> None:  # noqa: F811
    target = tmp_path / "events" / "lineage.jsonl"
    result = ingest(to(config, target), pets)
    events = [json.loads(row) for row in target.read_text().splitlines()]
    jobs = [f"ingest.pets.{layer}" for layer in ("bronze", "silver", "gold")]
    assert [(e["job"]["name"], e["eventType"]) for e in events] == [(j, k) for j in jobs for k in ("START", "COMPLETE")]
    done = events[1::2]
    assert done[0]["inputs"][0]["name"] == str(pets)
    for above, below in itertools.pairwise(done):
        assert below["inputs"][0]["name"] == above["outputs"][0]["name"]
    gold = Gold.open(config.data.lake, "pets")
    (made,) = done[-1]["outputs"]
    assert made["name"] == str(gold.path.resolve()) and made["facets"]["version"]["datasetVersion"] == result.gold
    assert made["outputFacets"]["outputStatistics"]["rowCount"] == sum(result.layers[-1].rows.values())
    assert "train.tokens" in {field["name"] for field in made["facets"]["schema"]["fields"]}
    assert len({e["run"]["runId"] for e in events}) == 3


def test_events_reach_an_endpoint(
    pets: Path,  # noqa: F811
    config: Config,  # noqa: F811
    received: tuple[str, list[dict[str, Any]]],
) -> None:
    url, events = received
    ingest(to(config, url), pets)
    assert [event["eventType"] for event in events] == ["START", "COMPLETE"] * 3


def test_an_endpoint_that_does_not_answer_is_said_once_and_stops_nothing(
    pets: Path,  # noqa: F811
    config: Config,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "elasmo"):
        assert ingest(to(config, "http://127.0.0.1:9"), pets).gold
    assert len([r for r in caplog.records if "takes no events" in r.getMessage()]) == 1


def test_a_failure_is_told_with_its_reason(tmp_path: Path) -> None:
    target = tmp_path / "lineage.jsonl"
    with pytest.raises(SourceError), LineageEvents(str(target)).job("ingest.x.bronze", []):
        raise SourceError("the shard is cut")
    last = json.loads(target.read_text().splitlines()[-1])
    assert last["eventType"] == "FAIL" and last["run"]["facets"]["errorMessage"]["message"] == "the shard is cut"


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    with pytest.raises(LineageEventsError, match=r"data.openlineage=.* cannot be written: .*; name a file\."):
        LineageEvents(str(tmp_path))


def test_nothing_is_sent_unasked() -> None:
    with LineageEvents(None).job("ingest.x.bronze", []) as made:
        assert made == []
