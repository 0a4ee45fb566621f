"""font-digits: the ten digits of several hundred typefaces, a PUBLIC set for 28×28 digits.

The typefaces come from Debian packages, all free software, which apt downloads and nothing
installs. Each digit is drawn large, cut out, scaled to fit 20×20 pixels and centred in 28×28, white
on black, as MNIST does it. Typefaces that lack a digit, or draw exactly what an earlier one did,
are left out.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from sfumato.data.entry import NamedSet, array_files, every_fifth, open_arrays, write_arrays
from sfumato.data.fetch import DebianArchives, Prepared, run_tool
from sfumato.data.schema import Schema, class_names
from sfumato.progress import Progress

SIDE, BOX = 28, 20
_POINTS = 96
_DIGITS = "0123456789"
_SUFFIXES = (".ttf", ".otf")

# SHA-256 of each package as of Debian 12.
PACKAGES = {
    "fonts-adf-accanthis": "7e43456f11cad9fcbf486050ba979e446934a4be38a5d22bb3489d9dcb5244c5",
    "fonts-adf-baskervald": "37cde81816c0935d16d3b8cc78e844c313f0e4e05f598ffe4d01c230c7096456",
    "fonts-adf-berenis": "5fffc2c9e0ab8b59aa9fc10731d999404a7ea7336d3ad901d43a2102f230de92",
    "fonts-adf-gillius": "75c5f6ecc9f289c2a2146034b6e00d46d57cce818a7394fba8bb0543fab9f64e",
    "fonts-adf-ikarius": "72f8dfe5224ad2aaed3a37ce3a671a35629889d75368abfcf3c404690bf0da6c",
    "fonts-adf-irianis": "0d1bae9eba74d23508e9281b6c88cc3e330bc97937bc447047f6a81ad842a5cb",
    "fonts-adf-libris": "f00e5c10887b256cfed544bb3edf026a3c715d8510766cb3c6e8a90640a3d1d9",
    "fonts-adf-mekanus": "7d175e7a54f1463403507a23934bbc60ed8a709bbbd09ee6ea4780b9794be65f",
    "fonts-adf-oldania": "e2ab27b56d5fef487b86631cb719eeb14ab9cbdb10ff731cf33563f25758c09b",
    "fonts-adf-romande": "a38d2e6722e429c7d1c4bafbdb6ea78880cf3356eb0996a2ba6e10510dd515c1",
    "fonts-adf-solothurn": "2075bf2aa861a88b49914853a69570415d994ac9dbe7e07cc4c29ec5e6856bb4",
    "fonts-adf-switzera": "a447c3bb80634d16f38427acf20a3bbfa0b615152ba083f075488cf4fc1bf270",
    "fonts-adf-tribun": "de1ea9e2bd8c1cccc7a9f7ded002c9e82ea4535ceb2c9ece12c10d43945c5082",
    "fonts-adf-universalis": "f1bd2a52a68b6a657c501432d3a539fab7e902c364e804233e76119b854c0e61",
    "fonts-adf-verana": "988242e1667bfccb80251d58662cf313a76cdce2b4195a61c1ea29a543327434",
    "fonts-anonymous-pro": "4333e24bc646dcfbb6fda3d9c349d753980b3222c9849cfa50ad6d89731c29e3",
    "fonts-arapey": "6702f22bcd3fe55510d77e06580f006f4022ad46a923367eaa1abb4d2864142e",
    "fonts-arundina": "6dca34164427e011422379b38e9b62d4ff9cfafbe10d6c8f8290fadfda5e0839",
    "fonts-averia-gwf": "b18cb6d1ca77be25173c48d8b650a48a1268988276be27564253a170493d7b8a",
    "fonts-averia-sans-gwf": "432627305095cf97a6aafaa76a8b6562471586246f339be9d67abc4a9970db35",
    "fonts-averia-serif-gwf": "bd85bd2fa5c8db8a5ffb994d6aa327b0df6247d0c490485bc0d80f3d0677a212",
    "fonts-b612": "d05ca6b14314b488e07d795168095da1166b28216df1f4edc2ea0109fd2ce525",
    "fonts-bebas-neue": "fdc713c8323e967f17e0f86fdda358af11b905bb4732551afbff75decdfd2bb4",
    "fonts-beteckna": "36075fb2e3ae1a4901fe61ab5ed490b7b6ed18408c96fdb993010b4acf281e89",
    "fonts-breip": "1f0ea903300b89cb55d107ee4a12be82118ada0384d8bd9db0aad8e1f8c1aa49",
    "fonts-bwht": "5dd1d688f690fcafac659761c20cade5ef49ffc20fd7ba6b953d7d38d5165839",
    "fonts-cabin": "3a7a7d6057956273b1afa22534383896e2901bcb98439033d8e7852223365238",
    "fonts-cantarell": "8fdf5687d9e2ce70456664519025a6b48fbaaadbc5b1cfbf8b09f72c2dc5f09b",
    "fonts-clear-sans": "0684588e6a2b4a33ebeb032c8e4aa76c86d960ae6dc135e2ecc9ef90da83e7c1",
    "fonts-comfortaa": "33c65e81b201177a56e6528f7ea5fd6b19f2db0bb6f4f95346b9483691851929",
    "fonts-comic-neue": "6f002dc90d62fde01a2b51f333c09dc6c21ffbfc6ca22d05a84cc049b083c826",
    "fonts-courier-prime": "6f827dd190446abbf83972f01e3f0db2c980e73bd6fb85b56d9d9a8f1755149f",
    "fonts-crosextra-caladea": "dd51af7629df5a2f3799f889cdf63d5abdda32e94e5de59398f728d98604a240",
    "fonts-crosextra-carlito": "673689e3a887cd150ca5018c26e1a4162709add3a1bdc0a2527af6fd073980d7",
    "fonts-dancingscript": "987b8182611e1f3d9e7b19a82787614470dd8c4ed894a4dedbebc2308703b216",
    "fonts-dkg-handwriting": "82ee9beae0313e11761af7bb81f4c3fdc91ddd6122ab78490e1b103b9f502709",
    "fonts-dosis": "5e830fdfeeec1e34fe0909c3374fd209351f3398bbf20bbb486f9e5069e075f3",
    "fonts-dustin": "4f74523ed2f3987279478a06933694ea91dadbe607b1c4077a25ca48c52ad3a7",
    "fonts-ebgaramond": "2780e32df19b909823425b3e21c2f2f2a1717bbdd96f33fc59a252a308903fa2",
    "fonts-ecolier-court": "8ce2aba588adffc3bff453dae91af24b26ba7d0ce458127ad38f68d4fd36415b",
    "fonts-essays1743": "bf5b25ffafcd28f584fa37ecf9ea1f7f02183928b5199e5051bbf7f5b951d79f",
    "fonts-eurofurence": "6208e980b935119c508d421c2ce2ad84b8065bcd21c6d5e6b0b628affcca1417",
    "fonts-fanwood": "c135922158bf3c4cc56a64188fa9cbd8fe2526a43e8a581d2714863934a53f5e",
    "fonts-femkeklaver": "93b34dc4752ac43634fffb93c985366a34dea16886287ae405d5b3e87cd9a7b4",
    "fonts-ferrite-core": "323bdb5ba533f4eace73eee3bf7a578365ccdf326dae0fd7226ee32a13ba08c2",
    "fonts-georgewilliams": "5e344d7cb52b4530109456c35e7f64c571b7060f0298224a7ed605e6e3f0e8ea",
    "fonts-gfs-artemisia": "434a089684b7ae431e9a721751aca8f4359d9eefa284ed994e9d45414a4aad81",
    "fonts-gfs-didot": "2addbd2cdb7d938878e8e7ccdf943004c55d1312a6a8ec5e07914a57246178db",
    "fonts-gfs-neohellenic": "41169eb825b0ea8264d997c6c14f2cbb17278b25984d19bbf753e71f558c14a3",
    "fonts-gnutypewriter": "9ed382b500341c1a5dc512b065935d6eb976b6c70a5f33c75a1c3404ff131995",
    "fonts-go": "6d1f3b1ee1e3d5a25be14137a5c47a732d4c02f7282ea6babf697a002479aa88",
    "fonts-goudybookletter": "25f3c8db503e161f70d0e6c26143f84b44d76487af1e4b1100c9bff0aa527346",
    "fonts-havana": "36abdb945fc21cb5a3f1a7a02c759cbf3bd75b42d747d3305ee68c518a108da8",
    "fonts-humor-sans": "84bd0c40b65dc345e05396a4ffb64282c14fbbb6e7079126eeabc92bd9fe7311",
    "fonts-isabella": "ee0c30fd0b3fc6f0ab7cf1c1449e55b898fc77d43cd4afc07e936d472e0f80b3",
    "fonts-jetbrains-mono": "516b8e3bacc9a30cf615543fa1fdaf0c5312284f2c4459b7838fd008fd9936bc",
    "fonts-johnsmith-induni": "4885d648adf474c46e0dd23085653d84e2cf3222305ecbfffa18d14a5f44faca",
    "fonts-joscelyn": "55752b19b3e0075d33129a4f8394966dcc0fa2ef2dfe7ce37a4e49cbc52a03e6",
    "fonts-jura": "4fa907bfa547d7a24d554330d1be0a74a65c01f168ce9e175242b837be1f3510",
    "fonts-karla": "0bbe3298aed346958c68407995b9084a440aad6263c384abe8547008be598e73",
    "fonts-kaushanscript": "ead16c3fe1fd47037f5afbb5dec765290fb14bff545051a5507ea60186019414",
    "fonts-klaudia-berenika": "c8d48dd52e1d6dd467c936536c92663ad418a7516e2c2073a5296199efcef155",
    "fonts-kristi": "03cdbe9ca6cb5ea863ad652ea94313666f275de526c3cb01e252da93019001c2",
    "fonts-lato": "86f50af146a7df9eca4e69f0262e73e708908435ebfa833df797adfa08843bc5",
    "fonts-league-mono": "43fd87d34d18f49fb56da6e94f3309285e5797bccd97ccad72fb6ed04ec0086c",
    "fonts-league-spartan": "4d1fc96447aa615855e8b7a0afc534c761446ef2ddc6a6259382ec99f1f8929e",
    "fonts-leckerli-one": "5667d604d3e28eb8be1c38f7601c8fcc2014e9dc25f841a3f210fc86ba18690b",
    "fonts-liberation": "efd381517f958b01969343634ffcbdd60056be7779af84c6f53a005090430204",
    "fonts-linuxlibertine": "5c77471e910189b3e4e2eda2b1c5f549ddcaf4de8f9640b97773643970d29087",
    "fonts-lobster": "9379824d3f3bc44844aa07cb9ad4e6bfd99a785e34668c5dba410947b715dc1b",
    "fonts-lobstertwo": "cd24c217d07c4688e47d6a5bf8e8909638855f4278ba1468e100a589bd15665a",
    "fonts-manrope": "6bba9bc78c721c5b087228e75521fdaabf417999b790119945b2c8b8ab268ace",
    "fonts-mononoki": "76643da51382d4bd47044960772166c6d20c8c0a2fcc05711464356be4c7d63f",
    "fonts-national-park": "27364a8f483c2bd1c5d9e239e20e00733d3db8a7f51424b88e4116fae5b958d3",
    "fonts-ocr-b": "56e6a6bfe5d77bbb4f0a6964ce1f8ed3679d7c1a138064bcaf6cc3480c3628f3",
    "fonts-open-sans": "ed8c4258af6c23e5105fa18940544f060f3c9664fbe881f25130fe0c65bc1485",
    "fonts-opendyslexic": "e41cbb53cb1e6981c89efa34c79e553d19125020c4708f9d5613c02bfaf3bf0e",
    "fonts-play": "274f6e95f668f1fff3441056e968a4c947ac975b29000d9c513bd06bb7f7f9d4",
    "fonts-prociono": "95756728048274924e02263a33357af1bba7e6509ffc2581238deb55c0eb1760",
    "fonts-quattrocento": "e59b8d429493e785cf16ac84b132e302ecb52fb06f0c309f46bdea045c9fc2eb",
    "fonts-quicksand": "1175e5c64f116887b37ec3c8faea1f411bdef356580bc22298c3c9da75fac120",
    "fonts-roboto-slab": "bbc315d672de850a7c980bc2283e41b4f322fd5a2b2bb2d00f07c15983b950b1",
    "fonts-roboto-unhinted": "f89cf7d8a589489daecf750031ec50456ab3e648d49ff544f0f08753268fbd91",
    "fonts-routed-gothic": "d3755460b594d45b7ef28b4c4043873b6521345b36cf7c46237ddfa941947516",
    "fonts-rufscript": "72a7300913e52795b7915ac5873eda633a80dcb49bb590711cde83b270b0f606",
    "fonts-sil-gentium-basic": "fde97d080b4ed65e3575a40cd3cfead323cea7fa1069d812be2d43a1c20866ae",
    "fonts-sjfonts": "f6fdb38cb13a7772ebbb03db21ca118125b136caa170e2a77b17d1f9f4c504f0",
    "fonts-sora": "e0425247581d71428f69266f91b3be0b4576930e7786a6a5c0e4e040bc74c164",
    "fonts-summersby": "509ef886917380b1b8f5c19b7cd20507fb212764a9e79e8f64229710dca06e7e",
    "fonts-tiresias": "d810a9365337c72ec6d5b5bf667e91bcd73fbfea27fec2a7aeebe756a9b3fc38",
    "fonts-tlwg-garuda-otf": "daa4eaf7a5e827dfd2a135f61ce2201092643a9a651ee17c7f922bb41caedf64",
    "fonts-tlwg-kinnari-otf": "ed717ef9b8f77646850aa9b136c270475f5629ee665ecb37fa512e3b7df05d33",
    "fonts-tlwg-laksaman-otf": "03db5ec92ca4c66d8be9b20be287a512488a3ea79cfc9ba058d7179e512a0d00",
    "fonts-tlwg-loma-otf": "a775452dfa77de3176bbb2b06f1fa61d5a95177a74a460a768ae82940e9407fc",
    "fonts-tlwg-norasi-otf": "ae30c610afdc87c82dc80b2adba627bbea410dfa396af794bb1f1cbd62419907",
    "fonts-tlwg-purisa-otf": "bfbf2eb9e8ab61a0c42383896bcead5cda4323adbe092351ee50ad0d0161afc1",
    "fonts-tlwg-sawasdee-otf": "b4035fbbc035256d42ee16241c6c638546fc2f5f9dacb614ac2e63d403397f11",
    "fonts-tlwg-typewriter-otf": "e118b589831522e01b1ea765a7fa6d0b5f3329ff22f05ca47ec40fb28a4fb096",
    "fonts-tlwg-umpush-otf": "c4963c5f75b3b6571e8f1b496797a4a8461b2e07c4c210438579d7fba2350256",
    "fonts-tlwg-waree-otf": "b87dd6515da6d25d4a4f7c7838544e7268fb9a72c8a3a61007d1a5ec1c894f2d",
    "fonts-tuffy": "e77e30607b5653a109f2e4a6527c43df55c7d7a6c23e77f8734a86110e6cbd08",
    "fonts-yanone-kaffeesatz": "f877e8ad4fd0aa8c20ac104c9eef69b54dcdc93e2e0d09a01fe5acfc89371980",
    "fonts-yrsa-rasa": "392861c3ce4679e803245e7e3c2728bf857c54b8bae2d9c45ade62dc9e88eaa4",
}


def render_digits(typeface: bytes) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    """The digits (10, 28, 28) of a typeface, or None where it cannot tell all ten apart."""
    try:
        font = ImageFont.truetype(
            io.BytesIO(typeface), _POINTS, layout_engine=ImageFont.Layout.BASIC
        )
        digits = [_render(font, digit) for digit in _DIGITS]
    except (OSError, ValueError):  # a damaged or bitmap-only font
        return None
    if any(digit is None for digit in digits):
        return None
    drawn = np.stack([np.asarray(digit) for digit in digits])  # (10, 28, 28)
    return drawn if len({digit.tobytes() for digit in drawn}) == len(_DIGITS) else None


def _render(font: ImageFont.FreeTypeFont, digit: str) -> Image.Image | None:
    room = 4 * _POINTS
    canvas = Image.new("L", (room, room), 0)
    ImageDraw.Draw(canvas).text((_POINTS, _POINTS), digit, fill=255, font=font)
    ink = canvas.getbbox()
    if ink is None:
        return None
    glyph = canvas.crop(ink)
    scale = BOX / max(glyph.size)
    width, height = (max(1, round(side * scale)) for side in glyph.size)
    glyph = glyph.resize((width, height), Image.Resampling.BOX)
    picture = Image.new("L", (SIDE, SIDE), 0)
    picture.paste(glyph, ((SIDE - width) // 2, (SIDE - height) // 2))
    return picture


def _prepare(raw: Path, workshop: Path, progress: Progress) -> None:
    faces: dict[bytes, np.ndarray[Any, np.dtype[np.uint8]]] = {}
    packages = sorted(raw.glob("*.deb"))
    with progress.stage("Rendering digits", len(packages)) as stage:
        for package in packages:
            unpacked = raw / package.stem
            run_tool(["dpkg-deb", "--extract", str(package), str(unpacked)], raw)
            for file in sorted(unpacked.rglob("*")):
                if file.suffix.lower() in _SUFFIXES and file.is_file() and not file.is_symlink():
                    digits = render_digits(file.read_bytes())
                    if digits is not None:
                        faces.setdefault(digits.tobytes(), digits)
            stage.advance()
    drawn = np.stack(list(faces.values()))  # (typefaces, 10, 28, 28)
    # By typeface, so that no test digit is drawn in a typeface of the training set.
    for split, chosen in every_fifth(len(drawn)).items():
        images = drawn[chosen].reshape(-1, 1, SIDE, SIDE)
        write_arrays(workshop, split, images, np.tile(np.arange(10), len(chosen)))


FONT_DIGITS = NamedSet(
    name="font-digits",
    about="Font digits: 28×28 gray digits of free typefaces, rendered from Debian's fonts-* packages",
    licence="each typeface its own free licence (OFL, GPL with font exception, …); see the packages",
    use="public",
    schema=Schema(kind="images", shape=(1, SIDE, SIDE), classes=class_names(10)),
    sizes={"train": 5_740, "test": 1_440},
    files=array_files(
        "2682cd075f1a5fd291ffdec1c127c311a5534354d4897c0759954049bf569670",
        "fdba5b85764f2ff216c2a1ed42624bc983e6f0df7c87a16c274c0276c8831de9",
        "3331af77230772a1dcc6e43201ea1165a2f676a68b925b7012c85b6131dd45e6",
        "e2242697f324bc8b922a54419509c14c87cf26fe1e4c4ab99a399e9a73b2a7c0",
    ),
    sources=(
        Prepared(DebianArchives(PACKAGES), tuple(f"{name}.deb" for name in PACKAGES), _prepare),
    ),
    open=open_arrays,
    note="train and test share no typeface; the packages are those of Debian 12",
    exact=False,
)
