"""Charts of `egpu simulate --plot` and of reports."""

import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

from egpu.cli.plots import Line, write_plot
from egpu_base.errors import InvalidInput

PANELS = [
    ("Given out", [Line("price", [0, 50, 100], [0, 50, 96.2]), Line("fgd <1>", [0, 50, 100], [0, 50, 95.3])]),
    ("Fragments", [Line("price", [0, 100], [float("nan"), 3.8])]),
]


def test_svg_names_every_panel_and_line(tmp_path: Path) -> None:
    write_plot(tmp_path / "plot.svg", PANELS, x_title="arrived load")
    drawn = ElementTree.parse(tmp_path / "plot.svg").getroot()
    said = {"".join(text.itertext()) for text in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Given out", "Fragments", "price", "fgd <1>", "arrived load"} <= said


def test_png_is_a_picture_as_wide_as_its_panels(tmp_path: Path) -> None:
    for count in (1, 2):
        path = tmp_path / f"{count}.png"
        write_plot(path, PANELS[:count], x_title="arrived load")
        signature, width, height = struct.unpack(">8s8xII", path.read_bytes()[:24])
        assert signature == b"\x89PNG\r\n\x1a\n"
        assert width == 1040 * count
        assert height > 0


def test_another_suffix_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"\.pdf is not supported. Use \.svg or \.png"):
        write_plot(tmp_path / "plot.pdf", PANELS, x_title="arrived load")
    assert list(tmp_path.iterdir()) == []
