#!/usr/bin/env python3
"""Draws the task of docs/vision.md: images of two colored shapes, with questions about them. Needs Pillow.

    dev/tools/shapes.py OUT                               6000 images, each with all its questions, in random order
    dev/tools/shapes.py OUT --images 1000 --questions 1 --seed 2    other images, with one question each
    dev/tools/shapes.py OUT ... --empty                   the same questions about empty images, as a control
    dev/tools/shapes.py OUT --side 224 --word --captions  larger images that also show a word, with captions
    dev/tools/shapes.py OUT ... --text FOLDER             adds one conversation without an image per image

Writes OUT.jsonl, a conversation per line in LLaVA's format, and the folder OUT with the images and
processor_config.json, which data/prepare.py needs as --image-processor.

Each image (32 x 32 pixels without --side) shows two of the shapes circle, square and triangle, in two of six colors,
at the left and at the right. Questions: `circle?` has the answer `red`, or `none` if the image shows no circle; `red?`
has the answer `circle`; `left?` has the answer `red`; with --word, `word?` has the answer `lamp`. A caption reads
`red circle, blue square, lamp`. A conversation without an image asks `text?`; its answer is 240 bytes of a file in
FOLDER.
"""
import argparse
import json
import os
import random
import sys

try:
    from PIL import Image, ImageDraw, ImageFont
except ImportError:
    sys.exit("error: shapes.py needs Pillow: pip install pillow")

GROUND = (128, 128, 128)
SHAPES = ("circle", "square", "triangle")
COLORS = {"red": (220, 30, 30), "green": (30, 160, 50), "blue": (40, 60, 220), "yellow": (235, 215, 40),
          "pink": (245, 130, 200), "white": (250, 250, 250)}
WORDS = ("apple bread chair dance eagle field glass horse island jacket kettle lamp mirror night ocean paper queen "
         "river stone table uncle valley water yellow zebra").split()


def draw(picture, shape, color, x, y, radius):
    """Draws a shape of at most `radius` pixels around (x, y)."""
    box = (x - radius, y - radius, x + radius, y + radius)
    if shape == "circle":
        picture.ellipse(box, fill=COLORS[color])
    elif shape == "square":
        picture.rectangle(box, fill=COLORS[color])
    else:
        picture.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], fill=COLORS[color])


def make(pick, side, with_word, empty):
    """Returns an image, its caption, and its questions with their answers."""
    shapes, colors = pick.sample(SHAPES, 3), pick.sample(sorted(COLORS), 2)
    image, scale = Image.new("RGB", (side, side), GROUND), side // 32
    picture, height = ImageDraw.Draw(image), side * 3 // 4 if with_word else side
    for place, (shape, color) in enumerate(zip(shapes, colors)):
        radius = pick.randint(4 * scale, 6 * scale)
        x = side // 2 * place + pick.randint(radius + 1, side // 2 - radius - 2)
        y = pick.randint(radius + 1, height - radius - 2)
        if not empty:
            draw(picture, shape, color, x, y, radius)
    answers = list(zip(shapes, colors + ["none"])) + list(zip(colors, shapes)) + list(zip(("left", "right"), colors))
    caption = ["%s %s" % (color, shape) for color, shape in zip(colors, shapes)]
    if with_word:
        word, font = pick.choice(WORDS), ImageFont.load_default(size=4 * scale)
        place = pick.randint(scale, side - scale - round(font.getlength(word))), pick.randint(height, side - 6 * scale)
        if not empty:
            picture.text(place, word, fill=(0, 0, 0), font=font)
        answers.append(("word", word))
        caption.append(word)
    pick.shuffle(answers)
    return image, ", ".join(caption), [(asked + "?", answer) for asked, answer in answers]


def passages(folder, seed):
    """Yields parts of 240 characters of the ASCII files in a folder. Reads the files in random order, endlessly."""
    paths = sorted(os.path.join(root, name) for root, _, names in os.walk(folder) for name in names)
    random.Random(seed).shuffle(paths)
    while True:
        found = False
        for path in paths:
            with open(path, encoding="latin-1") as file:
                text = file.read()
            for begin in range(0, len(text) - 240, 240) if text.isascii() else []:
                found = True
                yield text[begin:begin + 240]
        if not found:
            raise ValueError("--text %s: contains no ASCII file of more than 240 bytes" % folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--images", type=int, default=6000, help="number of images (default 6000)")
    parser.add_argument("--questions", type=int, default=8, help="questions per image (default: all, 7 or 8)")
    parser.add_argument("--captions", action="store_true", help="write a caption for each image instead of questions")
    parser.add_argument("--side", type=int, default=32,
                        help="pixels per row of an image, a multiple of 32 (default 32)")
    parser.add_argument("--word", action="store_true", help="write a word into each image; needs --side of at least 96")
    parser.add_argument("--seed", type=int, default=1, help="random seed of images and questions (default 1)")
    parser.add_argument("--empty", action="store_true", help="draw empty images; the questions stay the same")
    parser.add_argument("--text", metavar="FOLDER", help="folder of texts for conversations without an image")
    options = parser.parse_args()
    least = 96 if options.word else 32
    if options.side < least or options.side % 32:
        raise ValueError("--side %d: must be a multiple of 32%s" % (
            options.side, " of at least 96 with --word" * options.word))
    os.makedirs(options.out, exist_ok=True)
    pick, texts = random.Random(options.seed), passages(options.text, options.seed) if options.text else None
    with open(options.out + ".jsonl", "w", encoding="utf-8") as file:
        for number in range(options.images):
            image, caption, answers = make(pick, options.side, options.word, options.empty)
            name = "%05d.png" % number
            image.save(os.path.join(options.out, name), compress_level=1)
            turns = []
            for asked, answer in [("", caption)] if options.captions else answers[:options.questions]:
                turns.append({"from": "human", "value": asked if turns else "<image>\n" + asked})
                turns.append({"from": "gpt", "value": answer})
            file.write(json.dumps({"image": name, "conversations": turns}) + "\n")
            if texts:
                turns = [{"from": "human", "value": "text?"}, {"from": "gpt", "value": next(texts)}]
                file.write(json.dumps({"conversations": turns}) + "\n")
    processor = {"image_processor_type": "SiglipImageProcessor",
                 "size": {"height": options.side, "width": options.side}}
    with open(os.path.join(options.out, "processor_config.json"), "w", encoding="utf-8") as file:
        json.dump({"patch_size": 16 if options.side >= 128 else 8, "image_processor": processor}, file)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as problem:
        sys.exit("error: %s" % problem)
