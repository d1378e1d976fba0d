#!/usr/bin/env python3
"""Draws the task of docs/vision.md: images of two colored shapes, with questions about them. Needs Pillow.

    dev/tools/shapes.py OUT                               6000 images, each with all its questions, in random order
    dev/tools/shapes.py OUT --images 1000 --questions 1 --seed 2    other images, with one question each
    dev/tools/shapes.py OUT ... --empty                   the same questions about empty images, as a control

Writes OUT.jsonl, a conversation per line in LLaVA's format, and the folder OUT with the images and
processor_config.json, which data/prepare.py needs as --image-processor.

Each image has 32 x 32 pixels and shows two of the shapes circle, square and triangle, in two of six colors, at the left
and at the right. Questions: `circle?` has the answer `red`, or `none` if the image shows no circle; `red?` has the
answer `circle`; `left?` has the answer `red`.
"""
import argparse
import json
import os
import random
import sys

try:
    from PIL import Image, ImageDraw
except ImportError:
    sys.exit("error: shapes.py needs Pillow: pip install pillow")

SIDE, PATCH = 32, 8
GROUND = (128, 128, 128)
SHAPES = ("circle", "square", "triangle")
COLORS = {"red": (220, 30, 30), "green": (30, 160, 50), "blue": (40, 60, 220), "yellow": (235, 215, 40),
          "pink": (245, 130, 200), "white": (250, 250, 250)}


def draw(picture, shape, color, x, y, radius):
    """Draws a shape of at most `radius` pixels around (x, y)."""
    box = (x - radius, y - radius, x + radius, y + radius)
    if shape == "circle":
        picture.ellipse(box, fill=COLORS[color])
    elif shape == "square":
        picture.rectangle(box, fill=COLORS[color])
    else:
        picture.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], fill=COLORS[color])


def make(pick, empty):
    """Returns an image and its seven questions with their answers."""
    shapes, colors = pick.sample(SHAPES, 3), pick.sample(sorted(COLORS), 2)
    image = Image.new("RGB", (SIDE, SIDE), GROUND)
    picture = ImageDraw.Draw(image)
    for side, (shape, color) in enumerate(zip(shapes, colors)):
        radius = pick.randint(4, 6)
        x = SIDE // 2 * side + pick.randint(radius + 1, SIDE // 2 - radius - 2)
        y = pick.randint(radius + 1, SIDE - radius - 2)
        if not empty:
            draw(picture, shape, color, x, y, radius)
    answers = list(zip(shapes, colors + ["none"])) + list(zip(colors, shapes)) + list(zip(("left", "right"), colors))
    pick.shuffle(answers)
    return image, [(asked + "?", answer) for asked, answer in answers]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--images", type=int, default=6000, help="number of images (default 6000)")
    parser.add_argument("--questions", type=int, default=7, help="questions per image, at most 7 (default 7)")
    parser.add_argument("--seed", type=int, default=1, help="random seed of images and questions (default 1)")
    parser.add_argument("--empty", action="store_true", help="draw empty images; the questions stay the same")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    pick = random.Random(options.seed)
    with open(options.out + ".jsonl", "w", encoding="utf-8") as file:
        for number in range(options.images):
            image, answers = make(pick, options.empty)
            name = "%05d.png" % number
            image.save(os.path.join(options.out, name))
            turns = []
            for asked, answer in answers[:options.questions]:
                turns.append({"from": "human", "value": asked if turns else "<image>\n" + asked})
                turns.append({"from": "gpt", "value": answer})
            file.write(json.dumps({"image": name, "conversations": turns}) + "\n")
    processor = {"image_processor_type": "SiglipImageProcessor", "size": {"height": SIDE, "width": SIDE}}
    with open(os.path.join(options.out, "processor_config.json"), "w", encoding="utf-8") as file:
        json.dump({"patch_size": PATCH, "image_processor": processor}, file)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as problem:
        sys.exit("error: %s" % problem)
