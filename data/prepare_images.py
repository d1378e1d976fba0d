"""Images of prepare.py: prepares pixels with Pillow as a Hugging Face image processor does. Writes them to the .images
file next to a token file. README.md describes the .images file."""
import array
import collections
import hashlib
import io
import itertools
import os
import re
import struct
import sys
import tempfile
import warnings
import zlib

from prepare_models import read_json, token_text
from prepare_records import Malformed
from prepare_tokenizers import (Bytes, Failure, first_line, little_endian, need, say, several, width_of,
                                write_atomically)

MARK = "<image>"  # stands for an image in the text of a record
MAGIC, VERSION, HEADER_BYTES = 20261129, 1, 1024
ASPECTS = ("processor", "pad", "resize")  # values of --image-aspect; an .images file stores the index in this list
# Pillow's names of the accepted formats. Other formats start programs (EPS) or need more libraries.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
MAX_PIXELS = 178956970  # Pillow refuses to open larger images
BLOCK = 1 << 20  # bytes copied at a time
BYTE_TOKEN = 255  # placeholder of an image with byte-level tokens, because UTF-8 never contains this byte

CLIP = {"size": 224, "crop_size": 224, "do_center_crop": True, "square": False,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
SIGLIP = {"size": 224, "square": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
# {prefix of transformers' class name: settings that the processor's file may omit}
DEFAULTS = {"CLIP": CLIP, "Llava": CLIP, "Siglip": SIGLIP}
# {setting: the only supported value}
REQUIRED = {"do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255, "do_pad": False}

# Settings by which images are prepared. They are passed to workers and recorded in the manifest.
#   side: width and height of the result
#   size: shortest edge, or [height, width], of the resized image, which is then cropped to side x side
#   pad: True if images are first padded to a square with the mean color
#   rows: placeholder tokens per image; token: id of the placeholder; name: its text in a chat template
#   folder: the folder that paths of images are relative to; "": the folder of the file with the records
Images = collections.namedtuple("Images", "side size pad resample mean std rows token name aspect folder")


def edges(value, square):
    """Returns an image processor's size as [height, width] or as the length of the shortest edge; None if it is
    neither. square: True if a single number means height and width."""
    if isinstance(value, dict):
        value = {key: length for key, length in value.items() if length is not None}
        if set(value) == {"height", "width"}:
            value = [value["height"], value["width"]]
        else:
            value = value.get("shortest_edge") if len(value) == 1 else None
    elif square and not isinstance(value, list):
        value = [value, value]
    lengths = value if isinstance(value, list) and len(value) == 2 else [value]
    return value if all(type(length) is int and 0 < length <= 1 << 14 for length in lengths) else None


def rows_of(folder, side, processor, config):
    """Returns the number of placeholders per image, as transformers' LlavaProcessor computes it. If config.json names
    VILA's projector (mlp_downsample), returns VILA's number. If config.json has no vision_config, it describes a vision
    tower alone, and CLIP's class token is dropped. processor, config: the folder's JSON files."""
    vision = config["vision_config"] if isinstance(config.get("vision_config"), dict) else config
    patch, kind = processor.get("patch_size"), str(vision.get("model_type"))
    if patch is not None:
        more = processor.get("num_additional_image_tokens") or 0
        strategy = processor.get("vision_feature_select_strategy")
    else:
        more = int(kind.startswith("clip"))
        patch = vision.get("patch_size", 32 if more else 16 if kind.startswith("siglip") else None)
        strategy = config.get("vision_feature_select_strategy") or (
            "default" if more or config.get("model_type") == "llava" else "full")
    rows = processor.get("image_seq_length", config.get("image_seq_length"))
    if type(patch) is int and patch > 0 and type(more) is int:
        rows = (side // patch)**2 + more - (strategy == "default")
        if config.get("mm_projector_type") == "mlp_downsample":  # 2 x 2 patches become one row
            rows = (-(-(side // patch) // 2))**2
    if type(rows) is not int or rows < 1:
        raise Failure("--image-processor %s: the number of tokens per image is unknown; add patch_size to the folder's "
                      "processor_config.json" % folder)
    return rows


def token_of(options, tokenizer, processor, config):
    """Returns (id, text) of the placeholder token."""
    if isinstance(tokenizer, Bytes) and options.image_token is None:
        return BYTE_TOKEN, MARK
    name = options.image_token or token_text(processor.get("image_token")) or MARK
    token = int(name) if name.isdecimal() else tokenizer.token(name)
    if token is None and options.image_token is None:
        token = config.get("image_token_index", config.get("image_token_id", tokenizer.vocab))
    if type(token) is not int or not 0 <= token < 1 << 8 * width_of(tokenizer.vocab):
        raise Failure("--image-token %s: the tokenizer has no such token; name another token or its id" % name)
    return token, name


def read_processor(options, tokenizer):
    """Returns the Images given by the command's flags and the files in the folder --image-processor."""
    folder = options.image_processor

    def read(name):
        path = os.path.join(folder, name)
        return read_json(path, name, "") if os.path.exists(path) else {}

    image = need("PIL.Image", "pillow")
    processor, config = read("processor_config.json"), read("config.json")
    given = processor.get("image_processor") or read("preprocessor_config.json")
    if not isinstance(given, dict) or not given:
        raise Failure("--image-processor %s: the folder has neither preprocessor_config.json nor a "
                      "processor_config.json with an image_processor; name the folder of the vision model" % folder)
    kind = str(given.get("image_processor_type") or given.get("feature_extractor_type"))
    known = re.fullmatch("(CLIP|Llava|Siglip)(ImageProcessor(Fast|Pil)?|FeatureExtractor)", kind)
    if known is None:
        raise Failure("--image-processor %s: image processor %s is not supported; use one of CLIP, SigLIP or LLaVA"
                      % (folder, kind))
    values = {"resample": 3, **DEFAULTS[known[1]], **{key: value for key, value in given.items() if value is not None}}

    def check(good, *keys):
        if not good:
            raise Failure("--image-processor %s: %s is not supported" % (
                folder, ", ".join("%s %s" % (key, values.get(key)) for key in keys)))

    pad = known[1] == "Llava" and values.pop("do_pad", False) is True
    for key, value in REQUIRED.items():
        check(values.get(key, value) == value, key)
    size, result = edges(values["size"], values["square"]), edges(values["size"], True)
    if values.get("do_center_crop"):
        result = edges(values.get("crop_size"), True)
    check(size and isinstance(result, list) and result[0] == result[1], "size", "crop_size")
    check(type(values["resample"]) is int and values["resample"] in list(image.Resampling), "resample")
    for key in ("image_mean", "image_std"):
        good = isinstance(values[key], list) and len(values[key]) == 3
        check(good and all(type(value) in (int, float) and abs(value) < 1e6 for value in values[key]), key)
    check(min(values["image_std"]) > 0, "image_std")
    side, aspect = result[0], options.image_aspect
    token, name = token_of(options, tokenizer, processor, config)
    return Images(side, result if aspect == "resize" else size, aspect == "pad" or aspect == "processor" and pad,
                  values["resample"], values["image_mean"], values["image_std"],
                  rows_of(folder, side, processor, config), token, name, aspect, options.image_folder or "")


# --- records -------------------------------------------------------------------------------------------------


def sources_of(record, folder):
    """Returns the images of a record: paths, or the contents of image files."""
    found = [key for key in ("image", "images") if record.get(key)]
    if len(found) > 1:
        raise Malformed("it has image and images; keep one of them")
    value = record[found[0]] if found else []
    sources = []
    for source in value if isinstance(value, list) else [value]:
        if isinstance(source, dict):  # a row of a data set in Parquet
            source = source.get("bytes") or source.get("path")
        if isinstance(source, str) and source:
            source = os.path.join(folder, source)
        elif not isinstance(source, bytes):
            raise Malformed('"%s" is neither a path nor an object with bytes or path' % found[0])
        sources.append(source)
    return sources


def parts_of(content):
    """Returns a message's content, which is a text or a list of parts, as a list of parts. Each MARK in a text becomes
    an image part; line ends next to the MARK are removed."""
    parts = []
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "image":
            parts.append({"type": "image"})
        elif kind == "text" and isinstance(part.get("text"), str):
            for number, text in enumerate(part["text"].split(MARK)):
                parts += [{"type": "image"}] * (number > 0)
                text = text.strip("\n") if MARK in part["text"] else text
                parts += [{"type": "text", "text": text}] * bool(text)
        else:
            raise Malformed("a part of a message is neither an image nor a text")
    return parts


def with_marks(messages, count):
    """Returns (texts, lists), two copies of the messages of a record with `count` images. In texts, contents are text
    with a MARK for each image; in lists, contents are lists of parts. If the record has no MARK, the images are put in
    front of the first question."""
    texts = [dict(message) for message in messages]
    lists = [dict(message) for message in messages]
    marks = 0
    for text, parts in zip(texts, lists):
        if isinstance(text["content"], list):
            parts["content"] = parts_of(text["content"])
            text["content"] = "\n".join(MARK if part["type"] == "image" else part["text"] for part in text["content"])
        elif isinstance(text["content"], str):
            parts["content"] = parts_of(text["content"])
        elif text["content"] is not None:
            raise Malformed('a message has a "content" that is neither text nor a list of parts')
        if text["content"]:
            marks += text["content"].count(MARK)
    if count and not marks:
        first = next((at for at, message in enumerate(texts) if message["role"] == "user"), 0)
        texts[first]["content"] = (MARK + "\n") * count + (texts[first]["content"] or "")
        lists[first]["content"] = [{"type": "image"}] * count + (lists[first]["content"] or [])
    elif marks != count:
        raise Malformed("it has %d %s in its text, but %d images" % (marks, MARK, count))
    return texts, lists


def expanded(tokens, mask, images, width):
    """Replaces each image placeholder of an example by images.rows placeholders with mask 0. Returns (tokens, mask,
    number of replaced placeholders). width: bytes per token."""
    token, out, kept, at, count = images.token.to_bytes(width, "little"), bytearray(), bytearray(), 0, 0
    found = tokens.find(token)
    while found >= 0:
        if found % width == 0:
            out += tokens[at:found] + token * images.rows
            kept += mask[at // width:found // width] + bytes(images.rows)
            at, count = found + width, count + 1
        found = tokens.find(token, found + 1)
    return bytes(out + tokens[at:]), bytes(kept + mask[at // width:]), count


# --- pixels --------------------------------------------------------------------------------------------------


def pixels_of(source, images):
    """Returns the prepared pixels of an image as bytes in the order (channel, row, column). source: a path, or the
    contents of an image file. The pixels equal those that a Pillow processor of transformers 5 makes from the image's
    path."""
    pillow, operations = need("PIL.Image", "pillow"), need("PIL.ImageOps", "pillow")
    name = source if isinstance(source, str) else "in the record"
    if isinstance(source, str) and not os.path.isfile(source):
        raise Malformed("image %s: is missing, or not a file" % name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pillow.open(source if isinstance(source, str) else io.BytesIO(source), formats=FORMATS) as image:
                image = operations.exif_transpose(image).convert("RGB")  # drops an alpha channel
            if image.info.get("transparency") is not None:  # a transparent color becomes white
                white = pillow.new("RGBA", image.size, (255, 255, 255, 255))
                image = pillow.alpha_composite(white, image.convert("RGBA")).convert("RGB")
            return prepared(pillow, image, images)
    except (Malformed, MemoryError):
        raise
    except pillow.UnidentifiedImageError:
        reason = "is damaged, or not PNG, JPEG, WebP, GIF, BMP, TIFF or PPM"
    except Exception as error:  # Pillow's decoders raise errors of many kinds
        reason = "cannot be read (%s)" % first_line(error)
    raise Malformed("image %s: %s" % (name, reason))


def prepared(pillow, image, images):
    """Returns the bytes of an RGB image after padding, resizing and cropping. Raises ValueError if a step would make
    more than MAX_PIXELS pixels."""
    def limited(size):
        if size[0] * size[1] > MAX_PIXELS:
            raise ValueError("%d x %d pixels become %d x %d, more than %d" % (*image.size, *size, MAX_PIXELS))
        return size

    if images.pad and image.width != image.height:
        side = max(image.size)
        square = pillow.new("RGB", limited((side, side)), tuple(int(mean * 255) for mean in images.mean))
        square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        image = square
    if isinstance(images.size, list):
        size = images.size[::-1]
    else:
        long = int(images.size * max(image.size) / min(image.size))
        size = (images.size, long) if image.width <= image.height else (long, images.size)
    image = image.resize(limited(size), images.resample)
    left, top = (image.width - images.side) // 2, (image.height - images.side) // 2
    image = image.crop((left, top, left + images.side, top + images.side))
    return b"".join(channel.tobytes() for channel in image.split())


class Decoder:
    """Prepares the images of a unit of work. Equal images share one object, so their pixels are sent to the parent
    process once."""

    def __init__(self, images):
        self.images, self.of_path, self.of_pixels = images, {}, {}

    def __call__(self, source):
        """Returns (hash of the pixels, pixels) of an image. source: a path, or the contents of an image file."""
        if source not in self.of_path:
            pixels = pixels_of(source, self.images)
            digest = hashlib.blake2b(pixels, digest_size=16).digest()
            self.of_path[source] = self.of_pixels.setdefault(digest, (digest, pixels))
        return self.of_path[source]


# --- the file ------------------------------------------------------------------------------------------------


class ImageFile:
    """Collects the images of the next token file in a temporary file in the output's folder. Equal images are stored
    once."""

    def __init__(self, out, images):
        self.folder, self.images = os.path.dirname(out) or ".", images
        self.clear()

    def clear(self):
        self.file, self.numbers, self.places = None, {}, array.array("I")

    def add(self, images):
        """Adds the images of an example, [(hash, pixels), ...], in the order of their placeholders."""
        for digest, pixels in images:
            if digest not in self.numbers:
                if self.file is None:
                    os.makedirs(self.folder, exist_ok=True)
                    self.file = tempfile.TemporaryFile(dir=self.folder)
                self.file.write(pixels)
                self.numbers[digest] = len(self.numbers)
            self.places.append(self.numbers[digest])

    def blocks(self):
        self.file.seek(0)
        return iter(lambda: self.file.read(BLOCK), b"")

    def write(self, path):
        """Writes the .images file `path`, unless no image was added, and forgets the images. Returns the manifest's
        entries for the file."""
        facts, images = {"images": len(self.numbers), "places": len(self.places), "images_sha256": ""}, self.images
        if self.file is not None:
            places = little_endian(self.places)
            crc = zlib.crc32(places)
            for block in self.blocks():
                crc = zlib.crc32(block, crc)
            header = struct.pack("<8iI2i6f", MAGIC, VERSION, facts["images"], images.side, 3, images.rows,
                                 facts["places"], ASPECTS.index(images.aspect), crc, 1, images.token, *images.mean,
                                 *images.std)
            header, digest = header.ljust(HEADER_BYTES, b"\0"), hashlib.sha256()

            def hashed():
                for block in itertools.chain((header, places), self.blocks()):
                    digest.update(block)
                    yield block

            write_atomically(path, hashed())
            self.file.close()
            facts["images_sha256"] = digest.hexdigest()
        self.clear()
        return facts


def make_images(options, tokenizer):
    """Writes the input images to OUT.images, for the trainer's --image."""
    images = read_processor(options, tokenizer)
    decode, file, path = Decoder(images), ImageFile(options.out, images), options.out + ".images"
    try:
        file.add([decode(source) for source in options.inputs])
    except Malformed as error:
        raise Failure("%s; to prepare records with images, add --chat" % error)
    facts = file.write(path)
    say("%s: %s of %d placeholders" % (path, several(facts["images"], "image"), images.rows), sys.stdout)
