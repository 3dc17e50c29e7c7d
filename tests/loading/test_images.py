"""Images from files and from hand, and what a checkpoint's preprocessor_config.json makes of them."""

import json
import sys
import zlib
from types import ModuleType, SimpleNamespace

import pytest
import torch

from headwise.errors import MissingExtraError, ModelError
from headwise.loading.images import read_image
from headwise.loading.pixels import PixelRecipe, read_recipe
from headwise.png import write_png

IMAGE = torch.arange(2 * 3 * 3, dtype=torch.uint8).view(2, 3, 3)  # height, width, colours
PLAIN = IMAGE.permute(2, 0, 1)
FILE = write_png([bytes(row.flatten().tolist()) for row in IMAGE], in_colour=True)


@pytest.fixture
def without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)


@pytest.fixture
def pillow(monkeypatch):
    """A stand-in of Pillow that opens any file as IMAGE upside down, as its camera held it."""

    class Opened(SimpleNamespace):
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return False

        def convert(self, mode):
            assert mode == "RGB"
            return self

        def tobytes(self):
            return self.content

    def turned(image):
        return Opened(height=2, width=3, content=bytes(IMAGE.flip(0).flatten().tolist()), turned=image)

    module, images, operations = ModuleType("PIL"), ModuleType("PIL.Image"), ModuleType("PIL.ImageOps")
    images.open = lambda path: Opened(height=2, width=3, content=bytes(IMAGE.flatten().tolist()))
    operations.exif_transpose = turned
    module.Image, module.ImageOps = images, operations
    for name, each in (("PIL", module), ("PIL.Image", images), ("PIL.ImageOps", operations)):
        monkeypatch.setitem(sys.modules, name, each)
    return SimpleNamespace(Opened=Opened, Image=images)


def test_a_plain_png_needs_no_pillow(tmp_path, without_pillow):
    path = tmp_path / "image.png"
    path.write_bytes(FILE)
    assert torch.equal(read_image(path), PLAIN) and torch.equal(read_image(str(path)), PLAIN)


def test_other_files_name_the_extra_that_reads_them(tmp_path, without_pillow):
    path = tmp_path / "image.jpg"
    path.write_bytes(b"\xff\xd8\xff\xe0 a photo")
    with pytest.raises(MissingExtraError, match=r'pillow is not installed; .* pip install "headwise\[images\]"'):
        read_image(path)
    interlaced = bytearray(FILE)
    interlaced[28] = 1
    interlaced[29:33] = zlib.crc32(bytes(interlaced[12:29])).to_bytes(4, "big")
    path.write_bytes(bytes(interlaced))
    with pytest.raises(MissingExtraError, match="pillow"):
        read_image(path)


def test_with_pillow_every_file_is_turned_as_its_camera_says(tmp_path, pillow):
    path = tmp_path / "image.jpg"
    path.write_bytes(b"anything")
    assert torch.equal(read_image(path), PLAIN.flip(1))
    assert torch.equal(read_image(pillow.Opened(height=2, width=3, content=b"")), PLAIN.flip(1))
    pillow.Image.open = lambda path: (_ for _ in ()).throw(OSError("cannot identify\nimage file"))
    with pytest.raises(ModelError, match=r"the image .*image.jpg cannot be read: OSError: cannot identify$"):
        read_image(path)


def test_files_that_are_no_images_are_refused_in_a_line(tmp_path, without_pillow):
    with pytest.raises(ModelError, match=r"an image .*none\.png cannot be read: No such file"):
        read_image(tmp_path / "none.png")
    with pytest.raises(ModelError, match=r"an image must be a file; .* is a folder"):
        read_image(tmp_path)
    (tmp_path / "cut.png").write_bytes(FILE[:40])
    with pytest.raises(ModelError, match=r"cut\.png cannot be read: a PNG must be whole"):
        read_image(tmp_path / "cut.png")


def test_images_in_hand_are_bytes_of_any_layout():
    assert torch.equal(read_image(PLAIN), PLAIN)
    assert torch.equal(read_image(IMAGE.repeat(2, 2, 1)), PLAIN.repeat(1, 2, 2))  # (4, 6, 3): colours last
    assert torch.equal(read_image(IMAGE[..., 0]), PLAIN[:1].expand(3, -1, -1))
    assert torch.equal(read_image(PLAIN[:1]), PLAIN[:1].expand(3, -1, -1))
    assert torch.equal(read_image(IMAGE.repeat(2, 2, 1).numpy()), PLAIN.repeat(1, 2, 2))
    with pytest.raises(ModelError, match=r"got numbers of float32, \(3, 2, 3\): what a model reads already goes into"):
        read_image(PLAIN.float())
    with pytest.raises(ModelError, match=r"image must be a file, .*; got dict"):
        read_image({})
    with pytest.raises(ModelError, match=r"got numbers of uint8, \(2, 5, 4\)"):
        read_image(torch.zeros(2, 5, 4, dtype=torch.uint8))


def write_told(folder, **told):
    (folder / "preprocessor_config.json").write_text(json.dumps(told))
    return read_recipe(folder, 5, 7)


def test_without_a_file_the_image_is_stretched_and_runs_from_minus_one_to_one(tmp_path):
    for folder in (None, tmp_path):
        recipe = read_recipe(folder, 5, 7)
        assert not recipe.is_told
        pixels = recipe.apply(torch.tensor([0, 255, 51], dtype=torch.uint8).view(3, 1, 1).expand(3, 2, 3).contiguous())
        assert pixels.shape == (1, 3, 5, 7)
        # 0 -> -1, 255 -> 1, 51 / 255 = 0.2 -> -0.6; each step rounds by an eps of a number near 1
        expected = torch.tensor([-1.0, 1.0, -0.6]).view(1, 3, 1, 1).expand(1, 3, 5, 7)
        torch.testing.assert_close(pixels, expected, rtol=0, atol=4e-7)


def test_what_the_file_says_is_done(tmp_path):
    recipe = write_told(
        tmp_path, size={"height": 4, "width": 6}, image_mean=[0.1, 0.2, 0.3], image_std=[0.5, 1, 2], resample=3
    )
    assert (recipe.height, recipe.width, recipe.shortest_edge, recipe.resampling) == (4, 6, None, "bicubic")
    grey = torch.full((3, 4, 6), 102, dtype=torch.uint8)  # 0.4
    expected = torch.tensor([0.6, 0.2, 0.05]).view(1, 3, 1, 1).expand(1, 3, 4, 6)
    torch.testing.assert_close(recipe.apply(grey), expected, rtol=0, atol=4e-7)
    untouched = write_told(tmp_path, do_resize=False, do_rescale=False, do_normalize=False)
    assert (untouched.height, untouched.width) == (5, 7)
    assert torch.equal(untouched.apply(torch.full((3, 5, 7), 9, dtype=torch.uint8)), torch.full((1, 3, 5, 7), 9.0))
    assert write_told(tmp_path, size=9).width == 9
    assert write_told(tmp_path, rescale_factor=0.5).factor == 0.5


def test_the_middle_is_cut_after_the_shorter_side_was_resized(tmp_path):
    recipe = write_told(
        tmp_path,
        size={"shortest_edge": 4},
        do_center_crop=True,
        crop_size={"height": 4, "width": 2},
        do_rescale=False,
        do_normalize=False,
    )
    columns = torch.arange(8, dtype=torch.uint8).expand(3, 4, 8).contiguous()  # the shorter side is 4 already
    assert torch.equal(recipe.apply(columns), torch.tensor([3.0, 4.0]).expand(1, 3, 4, 2))
    assert write_told(tmp_path, size=4, do_center_crop=True, crop_size=3).shortest_edge == 4
    tall = PixelRecipe(height=6, width=6, shortest_edge=4)
    with pytest.raises(ModelError, match="with its shorter side resized to 4 it is 4 x 8"):
        tall.apply(columns)


def test_a_picture_made_smaller_is_averaged_and_not_picked_from():
    stripes = torch.tensor([0, 200], dtype=torch.uint8).repeat(8).expand(3, 16, 16).contiguous()
    small = PixelRecipe(height=2, width=2, factor=None, mean=None, std=None).apply(stripes)
    # a triangle over 8 columns on either side weighs both stripes nearly alike; picking would give 0 or 200
    assert bool(((small > 80) & (small < 120)).all()) and torch.equal(small, small.round())


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"resample": 99}, "must have resample one of 0, 2, 3; got 99"),
        ({"size": {"longest_edge": 3}}, "must have size with height and width, or with shortest_edge; got"),
        ({"size": {"height": 0, "width": 3}}, "must have sides from 1 to 8192 pixels; got 0"),
        ({"size": {"height": True, "width": 3}}, "must have sides from 1 to 8192 pixels; got True"),
        ({"image_mean": [0.5, 0.5]}, "must have image_mean of 3 numbers; got [0.5, 0.5]"),
        ({"image_std": [0.5, "a", 1]}, "must have image_std of 3 numbers; got"),
        ({"image_std": [0.5, 0, 1]}, "must have image_std of numbers other than 0; got"),
        ({"rescale_factor": "x"}, "must have rescale_factor of 1 numbers; got 'x'"),
    ],
)
def test_files_that_ask_for_something_else_are_refused(tmp_path, told, words):
    with pytest.raises(ModelError) as caught:
        write_told(tmp_path, **told)
    assert words in str(caught.value) and str(caught.value).endswith(": give the image's pixels as inputs")


def test_a_file_that_is_no_object_is_refused(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text("[1]")
    with pytest.raises(ModelError, match=r"must have an object; got \[1\]"):
        read_recipe(tmp_path, 5, 7)
