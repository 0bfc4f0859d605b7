"""The bundled client and `elasmo chat` against a real HTTP server."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from typer.testing import CliRunner

from elasmo.cli.main import app
from elasmo.serve.client import Answer, ChatError, parse_record, served_model, stream_chat, user_message
from tests.serve.endpoint import QUESTION, Endpoint
from tests.serve.tiny import png, wav


@contextmanager
def running(endpoint: Endpoint) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(endpoint.app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    (socket,) = server.servers[0].sockets
    yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(Endpoint()) as url:
        yield url


def test_a_key_is_sent_where_the_endpoint_asks_for_one() -> None:
    keys = {"a": {"sha256": hashlib.sha256(b"alpha").hexdigest()}}
    with running(Endpoint(keys=keys)) as url:
        with pytest.raises(ChatError, match="needs an API key"):
            served_model(url)
        result = CliRunner().invoke(app, ["chat", QUESTION, "--url", url, "--max-tokens", "3", "--key", "alpha"])
        assert result.exit_code == 0, result.output


def test_the_served_model_is_found(url: str) -> None:
    assert served_model(f"{url}/") == "tiny"


def test_pieces_make_the_answer_and_times_are_taken(url: str) -> None:
    answer = Answer()
    pieces = list(stream_chat(url, user_message(QUESTION), answer, {"model": "tiny", "max_tokens": 12, "seed": 1}))
    assert "".join(pieces) == answer.text == Endpoint().oracle(12, seed=1)[0]
    assert answer.finish_reason in ("stop", "length")
    assert answer.ttft_ms is not None and answer.total_ms is not None and 0 < answer.ttft_ms <= answer.total_ms
    tokens = answer.usage["completion_tokens"]
    assert answer.tpot_ms == pytest.approx((answer.total_ms - answer.ttft_ms) / (tokens - 1))


def test_a_refusal_keeps_the_servers_sentence(url: str) -> None:
    with pytest.raises(ChatError, match="'other' does not exist here"):
        list(stream_chat(url, user_message(QUESTION), Answer(), {"model": "other"}))


def test_nobody_there_says_how_to_start_one() -> None:
    with pytest.raises(ChatError, match="elasmo serve"):
        served_model("http://127.0.0.1:9", timeout_s=1)


def test_media_files_become_parts(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "b.WAV").write_bytes(wav())
    content = user_message("?", [tmp_path / "a.png"], [tmp_path / "b.WAV"], {"age": 3})["content"]
    assert [part["type"] for part in content] == ["image_url", "input_audio", "input_table", "text"]
    assert content[0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert content[1]["input_audio"]["format"] == "wav"


@pytest.mark.parametrize(("image", "audio"), [("a.txt", None), (None, "b.mp3"), ("missing.png", None)])
def test_files_that_cannot_be_sent_are_named(image: str | None, audio: str | None) -> None:
    with pytest.raises(ChatError, match=image or audio):
        user_message("?", [Path(image)] if image else [], [Path(audio)] if audio else [])


@pytest.mark.parametrize("text", ["{", "[1]", "3"])
def test_a_record_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(ChatError, match="--record"):
        parse_record(text)


def test_the_command_prints_the_answer_and_its_figures(url: str, tmp_path: Path) -> None:
    picture, sound = tmp_path / "a.png", tmp_path / "b.wav"
    picture.write_bytes(png())
    sound.write_bytes(wav())
    arguments = ["chat", QUESTION, "--url", url, "--image", str(picture), "--audio", str(sound)]
    result = CliRunner().invoke(app, [*arguments, "--record", '{"age": 41}', "--max-tokens", "8"])
    assert result.exit_code == 0, result.output
    assert "first token after" in result.stderr and "finish:" in result.stderr
