"""The moving picture of the demo shows what the terminal showed, at the same moments."""

import importlib.util
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ..helpers import extras

if sys.platform == "win32":
    pytest.skip("there are no terminals to be had", allow_module_level=True)

with extras():
    import pyte

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def program():
    """The module of the picture, which is a file outside the package and is loaded by its path."""
    spec = importlib.util.spec_from_file_location("demo_picture", DOCS / "demo_picture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def screen_of(text):
    screen = pyte.Screen(40, 4)
    pyte.Stream(screen).feed(text)
    return screen


def test_frame_has_texts_where_and_as_they_stand(program):
    """A frame keeps the place, the colour and the weight of each text, and leaves empty lines empty."""
    frame = program.frame_of(screen_of("plain \x1b[32mgreen\x1b[0m\r\n\r\n  \x1b[1mbold\x1b[0m <&>"))
    assert frame[0] == ((0, "plain", "default", False), (6, "green", "green", False))
    assert frame[1] == ()
    assert frame[2] == ((2, "bold", "default", True), (6, " <&>", "default", False))


def test_frames_follow_each_other_without_gap(program):
    """A frame like the one before is left out; the last stays until the loop restarts, and shows if nothing moves."""
    one, two = program.frame_of(screen_of("one")), program.frame_of(screen_of("two <&>"))
    text = program.svg_of([(0.0, one), (1.0, one), (2.0, two)], 4.0)
    root = ElementTree.fromstring(text)
    groups = root.findall(f"{SVG}g")
    assert [group.find(f"{SVG}text").text for group in groups] == ["one", "two <&>"]
    assert [group.get("visibility") for group in groups] == ["hidden", "visible"]
    assert "@keyframes f0{0.000%{visibility:visible}50.000%{visibility:hidden}}" in text
    assert "@keyframes f1{0%{visibility:hidden}50.000%{visibility:visible}}" in text
    assert "#f0{animation:f0 4s step-end -2s infinite}" in text  # so that the outcome is seen first


def test_picture_of_the_documentation_is_one_of_the_demo(program):
    """The last frame of the picture shows what the demo prints at its end."""
    text = (DOCS / "demo.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    last = " ".join(each.text for each in root.findall(f"{SVG}g")[-1])
    assert program.COMMAND in root.find(f"{SVG}desc").text
    assert re.search(r"executor: never more than 200 starts in any second", last)
    assert "call_later: MORE than 200 starts in a second" in last
    assert len(root.findall(f"{SVG}g")) > 20
