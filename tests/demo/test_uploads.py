"""Files that are sent by people who mean harm, or by mistake."""

import io
import struct
import zlib

import pytest
from PIL import Image

from mmrl.demo.error_handling import DemoError
from mmrl.demo.request_validation import MOST_BYTES, Uploads, decoded


@pytest.fixture
def uploads(tmp_path):
    (tmp_path / "mine").mkdir()
    Image.new("RGB", (8, 8), "red").save(tmp_path / "secret.png")
    Image.new("RGB", (8, 8), "blue").save(tmp_path / "mine" / "sent.png")
    return Uploads(tmp_path / "mine")


def test_uploads_are_decoded(uploads):
    assert uploads.picture(str(uploads.folder / "sent.png")).getpixel((0, 0)) == (0, 0, 255)


def test_files_outside_the_upload_folder_are_not_read(uploads):
    (uploads.folder / "link.png").symlink_to(uploads.folder.parent / "secret.png")
    (uploads.folder / "folder").symlink_to(uploads.folder.parent)
    outside = uploads.folder.parent / "secret.png"
    ways = [str(outside), f"{uploads.folder}/../secret.png", f"{uploads.folder}/link.png"]
    ways += [
        f"{uploads.folder}/folder/secret.png",
        "/etc/passwd",
        "",
        "\0",
        str(uploads.folder),
        "http://127.0.0.1/x.png",
    ]
    for path in [*ways, None, 3, {"path": str(outside)}]:
        with pytest.raises(DemoError, match=r"no uploaded file|Upload a picture"):
            uploads.picture(path)


@pytest.mark.parametrize("size", [(40_000, 40_000), (8192, 4096), (4097, 4096)])
def test_images_with_too_many_pixels_are_rejected_undecoded(size):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    with pytest.raises(DemoError, match="4096 x 4096"):
        decoded(b"\x89PNG\r\n\x1a\n" + header + body)


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"\x89PNG\r\n\x1a\n123"]
)
def test_files_that_are_no_image_are_rejected(content):
    with pytest.raises(DemoError, match="no picture"):
        decoded(content)


def test_truncated_images_are_rejected():
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(buffer, "PNG")
    with pytest.raises(DemoError, match="damaged"):
        decoded(buffer.getvalue()[:-400])


def test_large_files_are_not_opened(uploads):
    with (uploads.folder / "large.png").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(DemoError, match=r"8\.0 MiB; at most 8"):
        uploads.picture(str(uploads.folder / "large.png"))
