"""The stamps dataset: what a package laid out like Debian's lands, splits and asks; the whole package where it is."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import soundfile
from PIL import Image

from elasmo.config import Config, LimitsConfig, load
from elasmo.data.draft import Ref
from elasmo.data.gold import Gold
from elasmo.data.manifest import Layer, Snapshot, open_snapshot
from elasmo.ingest.ingest import IngestResult, ingest
from elasmo.ingest.silver import Silver
from elasmo.model.media import decode_audio, decode_image
from elasmo.sources.contract import load_contract
from elasmo.sources.recipe import RecipeSource
from elasmo.sources.source import SourceError

pytest.importorskip("soxr")
pytest.importorskip("resvg_py")

FOLDER = Path(__file__).parents[2] / "data" / "stamps"
INSTALLED = Path("/usr/share/tuxpaint/stamps")
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="30pt" height="15pt" viewBox="0 0 40 20">{}</svg>'
SPOKEN = {"be", "bg", "ca", "da", "el", "en", "es", "fr", "ml", "nl", "ro", "ru"}
NOUNS = tuple(f"thing{number}" for number in range(24))


def tone(hertz: float, rate: int, seconds: float = 0.3, channels: int = 2) -> bytes:
    """A Vorbis recording of a tone, as the package's are."""
    wave = 0.4 * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)
    file = io.BytesIO()
    soundfile.write(file, np.stack([wave] * channels, axis=1), rate, format="OGG", subtype="VORBIS")
    return file.getvalue()


def png(color: tuple[int, int, int, int], size: tuple[int, int] = (300, 200)) -> bytes:
    file = io.BytesIO()
    image = Image.new("RGBA", size, (0, 0, 0, 0))
    image.paste(color, (0, 0, size[0] // 2, size[1]))
    image.save(file, "PNG")
    return file.getvalue()


def write(folder: Path, name: str, content: bytes | str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe beside a small package: 24 whole stamps, and one of everything that lacks something."""
    folder = tmp_path_factory.mktemp("data") / "stamps"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("tuxpaint-stamps", "__pycache__"))
    stamps = folder / "tuxpaint-stamps"
    for number, noun in enumerate(NOUNS):
        write(stamps, f"things/{noun}.png", png((number * 10, 200, 90, 255)))
        write(stamps, f"things/{noun}.txt", f"A {noun}.\nfr.utf8=Un {noun}.\nel.utf8=Ένα {noun}.\nde.utf8=\n")
        write(stamps, f"things/{noun}_desc.ogg", tone(200 + 20 * number, 8_000, channels=1))
        write(stamps, f"things/{noun}_desc_fr.ogg", tone(210 + 20 * number, 44_100))
        write(stamps, f"things/{noun}.ogg", tone(100, 44_100))  # the sound it makes is no caption
        write(stamps, f"things/{noun}.dat", "nomirror\n")
    twin = (stamps / "things" / "thing22_desc.ogg").read_bytes()
    write(stamps, "things/thing23_desc.ogg", twin + b"a tag of another program")
    write(stamps, "drawn/hat.svg", SVG.format('<rect width="20" height="20" fill="red"/>'))
    write(stamps, "drawn/hat.txt", "A hat.\nfr.utf8=Un chapeau.\n")
    write(stamps, "drawn/hat_desc_fr.ogg", tone(900, 44_100))
    write(stamps, "drawn/broken.svg", "<svg")
    write(stamps, "drawn/broken.txt", "A break.\n")
    write(stamps, "drawn/broken_desc.ogg", tone(910, 44_100))
    write(stamps, "other/bare_desc_el.ogg", tone(920, 44_100))  # neither picture nor captions
    write(stamps, "other/unseen.txt", "Nobody drew it.\n")
    write(stamps, "other/unseen_desc.ogg", tone(930, 44_100))
    write(stamps, "other/nameless.png", png((1, 2, 3, 255)))
    write(stamps, "things/thing0_desc_ru.ogg", tone(940, 44_100))  # nobody translated it
    write(stamps, "things/thing1_desc_el.ogg", b"no sound")
    write(stamps, "things/thing2_desc_el.ogg", tone(950, 44_100, seconds=9.0))
    write(stamps, "things/thing3_desc_da.ogg.ogg", tone(960, 44_100))
    return folder


@pytest.fixture(scope="module")
def result(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> IngestResult:
    return ingest(small(tmp_path_factory.mktemp("lake")), dataset)


@pytest.fixture(scope="module")
def recipe(dataset: Path) -> ModuleType:
    return RecipeSource(dataset, load_contract(dataset)).module


def small(lake: Path) -> Config:
    return load(overrides=[f"data.lake={lake}", "data.vocab_size=300"], env={})


def refused(result: IngestResult) -> dict[str, str]:
    return {f"{refusal.table}/{refusal.key}": refusal.reason for refusal in result.refused}


def test_whole_stamps_stand_and_each_gap_is_named(result: IngestResult) -> None:
    assert result.counts["bronze"] == {"pictures": 28, "voices": 2 * 24 + 8}
    assert result.counts["silver"] == {"pictures": 25, "voices": 49}
    assert refused(result) == {
        "pictures/drawn/broken": "image: The image is in no format that is read here; send PNG, JPEG, WEBP, GIF, BMP, "
        "TIFF.",
        "pictures/other/nameless": "captions is missing",
        "pictures/other/unseen": "image is missing",
        "voices/drawn/broken/en": "stamp is pictures/drawn/broken, which was refused or never landed",
        "voices/other/bare/el": "caption is missing",
        "voices/other/unseen/en": "stamp is pictures/other/unseen, which was refused or never landed",
        "voices/things/thing0/ru": "caption is missing",
        "voices/things/thing1/el": "audio: The audio cannot be read: Format not recognised.",
        "voices/things/thing2/el": "audio: The audio lasts 9.00 s; at most 8 s are allowed (audio_s).",
        "voices/things/thing3/da.ogg": "language is 'da.ogg'; it must be one of be, bg, ca, da, el, en, es, fr, lt, "
        "ml, nl, ro, ru",
    }


def test_every_voice_is_asked_about_in_three_ways(result: IngestResult) -> None:
    assert sum(result.counts["gold"][split] for split in ("train", "heldout")) == 3 * 49
    by_modality = Counter[str]()
    for counts in result.modalities.values():
        by_modality.update(counts)
    assert by_modality == {"image": 49, "audio": 49, "image+audio": 49}


def test_answers_are_captions_and_a_yes_is_as_frequent_as_a_no(result: IngestResult, dataset: Path) -> None:
    gold = Gold.open(result.lake, "stamps", result.gold)
    rows = gold.read(range(3 * 49))
    answers = Counter[str]()
    for row in rows:
        kind, stamp = row.key.split("/")[0], row.key.split("/")[-2]
        if kind == "match":
            answers[row.answer] += 1
            assert (row.answer == "yes") == (f"pictures/{row.key.split('/', 1)[1].rsplit('/', 1)[0]}" in row.source)
        elif stamp != "hat":
            assert row.answer == (f"Un {stamp}." if row.key.endswith("/fr") else f"A {stamp}.")
        if kind == "see":
            assert ("French" if row.key.endswith("/fr") else "English") in row.question
    assert abs(answers["yes"] - answers["no"]) <= 4  # one for each split and language


def test_no_stamp_is_on_both_sides(result: IngestResult) -> None:
    gold = Gold.open(result.lake, "stamps", result.gold)
    stamps: dict[str, set[str]] = {"train": set(), "heldout": set()}
    for row in gold.read(range(3 * 49)):
        for source in row.source:
            table, _, key = source.partition("/")
            stamps[row.split].add(key if table == "pictures" else key.rsplit("/", 1)[0])
    assert stamps["heldout"] and not stamps["heldout"] & stamps["train"]


def test_sound_has_one_rate_and_its_pitch_and_the_originals_hash(result: IngestResult, dataset: Path) -> None:
    source = RecipeSource(dataset, load_contract(dataset))
    silver = Silver(_snapshot(result, "silver"), source)
    rows = {row["key"]: row for row in silver.rows("voices")}
    for key, rate, hertz, name in (("en", 8_000, 300, ""), ("fr", 44_100, 310, "_fr")):
        row = rows[f"things/thing5/{key}"]
        assert row["source_rate"] == rate
        file = dataset / "tuxpaint-stamps" / "things" / f"thing5_desc{name}.ogg"
        assert row["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
        samples = decode_audio(silver.content(Ref("voices", row["key"])), LimitsConfig(), 22_050)
        assert len(samples) == pytest.approx(0.3 * 22_050, abs=2)
        spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
        assert spectrum.argmax() * 22_050 / len(samples) == pytest.approx(hertz, abs=5)


def test_pictures_are_on_white_and_fit_the_contract(recipe: ModuleType) -> None:
    pixels = decode_image(recipe.media.picture(png((9, 9, 9, 255)), ".png", 100 * 100), LimitsConfig())
    assert pixels.shape == (67, 100, 3)
    assert (pixels[30, 10] == 9).all() and (pixels[30, 90] == 255).all()
    drawn = recipe.media.picture(SVG.format('<rect width="20" height="20" fill="red"/>').encode(), ".svg", 100 * 100)
    pixels = decode_image(drawn, LimitsConfig())
    assert pixels.shape == (50, 100, 3)
    assert pixels[25, 25].tolist() == [255, 0, 0] and pixels[25, 75].tolist() == [255, 255, 255]


def test_captions_are_parsed_as_tux_paint_writes_them(recipe: ModuleType) -> None:
    text = "A cat. \nca@valencia.utf8=Un gat.\nde.utf8=\nzh_TW.utf8=貓=貓\nodd line\nfr.utf8=Un chat.\nfr.utf8=Deux.\n"
    assert recipe.package.parse(text) == {
        "en": "A cat.",
        "ca@valencia": "Un gat.",
        "zh_TW": "貓=貓",
        "fr": "Un chat.",
    }
    assert recipe.package.parse("") == {}


def test_copies_mirrors_and_same_captions_share_a_group(recipe: ModuleType) -> None:
    captions = {
        "a/star": {"en": "A star."},
        "b/star": {"en": "a star"},
        "b/moon": {"en": "The moon."},
        "c/sun": {"en": "The sun."},
        "d/noon": {"fr": "Midi."},
        "e/night": {"fr": "Nuit."},
    }
    same = {"a picture": {"b/star", "b/moon"}, "a recording": {"c/sun", "d/noon"}}
    assert recipe.package.groups([*captions, "b/moon_mirror"], captions, same) == {
        **dict.fromkeys(("a/star", "b/star", "b/moon", "b/moon_mirror"), "a/star"),
        **dict.fromkeys(("c/sun", "d/noon"), "c/sun"),
        "e/night": "e/night",
    }


def test_files_that_differ_but_hold_the_same_sound_share_a_group(dataset: Path, result: IngestResult) -> None:
    silver = Silver(_snapshot(result, "silver"), RecipeSource(dataset, load_contract(dataset)))
    group = {row["key"]: row["group"] for row in silver.rows("pictures")}
    assert group["things/thing22"] == group["things/thing23"] == "things/thing22"
    assert group["things/thing21"] == "things/thing21"
    files = [dataset / "tuxpaint-stamps" / "things" / f"thing{number}_desc.ogg" for number in (22, 23)]
    assert files[0].read_bytes() != files[1].read_bytes()


def test_inputs_change_with_a_byte_of_the_package(recipe: ModuleType, dataset: Path) -> None:
    before = recipe.inputs()
    path = dataset / "tuxpaint-stamps" / "things" / "thing0.txt"
    text = path.read_text()
    path.write_text(text + "it.utf8=Una cosa.\n")
    try:
        after = recipe.inputs()
    finally:
        path.write_text(text)
    assert [name for name in before if before[name] != after[name]] == ["stamps captions"]


def test_without_the_package_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    folder = tmp_path / "stamps"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("tuxpaint-stamps", "__pycache__"))
    code = (folder / "package.py").read_text()
    (folder / "package.py").write_text(code.replace(str(INSTALLED), str(tmp_path / "nowhere")))
    with pytest.raises(SourceError, match="apt-get install tuxpaint-stamps-default") as caught:
        RecipeSource(folder, load_contract(folder)).describe()
    assert str(caught.value).count("\n") == 0


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.skipif(not INSTALLED.is_dir(), reason="needs `apt-get install tuxpaint-stamps-default`")
def test_the_whole_package_ingests(tmp_path: Path) -> None:
    config = load("pipelines/stamps.yaml", [f"data.lake={tmp_path}"], env={})
    done = ingest(config, FOLDER)
    voices = done.counts["silver"]["voices"]
    assert voices > 7_000
    assert done.counts["bronze"]["voices"] - voices < 300
    assert sum(done.counts["gold"][split] for split in ("train", "heldout")) > 2.9 * voices
    silver = Silver(_snapshot(done, "silver"), RecipeSource(FOLDER, load_contract(FOLDER)))
    assert {row["language"] for row in silver.rows("voices")} == SPOKEN
    languages = {name for row in silver.rows("pictures") for name in json.loads(row["captions"])}
    assert len(languages) == 78


def _snapshot(result: IngestResult, layer: Layer) -> Snapshot:
    (found,) = (entry.snapshot for entry in result.layers if entry.layer == layer)
    return open_snapshot(result.lake, result.dataset, layer, found)
