#!/usr/bin/env python3
"""Tests data/prepare.py --image-processor: the pixels of images, their placeholders in the tokens, and the file of images.

    python3 dev/test/test_prepare_images.py                  a few images, whose pixels are compared with recorded hashes
    python3 dev/test/test_prepare_images.py --transformers   200 images, compared with transformers' processors

Skipped without Pillow, and the second command also without transformers.
"""
import array
import hashlib
import io
import json
import os
import random
import struct
import sys
import unittest
import unittest.mock
import zlib

import test_prepare_chat as shared  # noqa: E402
import test_prepare_prompts as prompts  # noqa: E402

import prepare_images  # noqa: E402
import prepare_inputs  # noqa: E402
import prepare_prompts  # noqa: E402

base, messages = shared.base, shared.messages
SIGLIP = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 8, "width": 8}}
# the processors of the comparisons: class, size, crop, resample, do_pad
PROCESSORS = [("CLIP", {"shortest_edge": 28}, 24, 3, False), ("CLIP", {"shortest_edge": 20}, 23, 2, False),
              ("CLIP", {"height": 40, "width": 28}, 24, 3, False), ("Siglip", {"height": 24, "width": 24}, None, 3, False),
              ("Llava", {"shortest_edge": 24}, 24, 3, True)]
LARGE = [("CLIP", {"shortest_edge": 336}, 336, 3, False), ("Siglip", {"height": 384, "width": 384}, None, 3, False)]
TEMPLATE = ("{% for m in messages %}{{ m['role'].upper() + ': ' }}"
            "{% for part in m['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
            "{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}{% if m['role'] == 'assistant' %}"
            "{% generation %}{{ part['text'] + ' ' }}{% endgeneration %}{% else %}{{ part['text'] + ' ' }}{% endif %}"
            "{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}")
# kinds of image files: format, mode, and further options of Pillow's save()
LOSSLESS = [("PNG", "RGB", {}), ("PNG", "RGBA", {}), ("PNG", "P", {}), ("PNG", "P", {"transparency": 3}), ("PNG", "L", {}),
            ("PNG", "LA", {}), ("PNG", "1", {}), ("PNG", "I;16", {}), ("BMP", "RGB", {}), ("BMP", "P", {}), ("GIF", "P", {}),
            ("GIF", "L", {"save_all": True}), ("TIFF", "RGB", {}), ("TIFF", "CMYK", {}), ("TIFF", "I;16", {}),
            ("TIFF", "RGBA", {"compression": "tiff_lzw"}), ("PPM", "RGB", {}), ("PNG", "RGB", {"exif": 6}),
            ("PNG", "RGB", {"exif": 5}), ("TIFF", "L", {"exif": 3})]
OTHERS = [("JPEG", "RGB", {}), ("JPEG", "L", {}), ("JPEG", "CMYK", {}), ("JPEG", "RGB", {"exif": 6, "progressive": True}),
          ("JPEG", "RGB", {"exif": 8}), ("JPEG", "L", {"exif": 2}), ("JPEG", "RGB", {"exif": 4, "subsampling": 0}),
          ("JPEG", "RGB", {"exif": 7}), ("WEBP", "RGB", {}), ("WEBP", "RGBA", {}), ("WEBP", "RGBA", {"lossless": True}),
          ("WEBP", "RGB", {"exif": 6}), ("GIF", "P", {"transparency": 5})]
RECORDED = "18ec374771fc03c8d229d289075a0867ceb6898be7a9a2c5d6affce0f1a41d16"  # SHA-256


def image_file(kind, seed, width, height):
    """Returns the contents of an image file with random pixels."""
    from PIL import Image

    form, mode, more = kind
    pick = random.Random(seed)
    size = {"RGB": 3, "RGBA": 4, "CMYK": 4, "LA": 2, "I;16": 2}.get(mode, 1) * width * height
    if mode == "1":
        size = (width + 7) // 8 * height
    image = Image.frombytes(mode, (width, height), pick.randbytes(size))
    if mode == "P":
        image.putpalette(pick.randbytes(768))
    more = dict(more)
    if "exif" in more:
        exif = Image.Exif()
        exif[0x0112] = more["exif"]  # orientation
        more["exif"] = exif
    if more.get("save_all"):
        more["append_images"] = [image.transpose(Image.Transpose.ROTATE_180)]
    out = io.BytesIO()
    image.save(out, form, **more)
    return out.getvalue()


def settings_of(processor):
    """Returns the preprocessor_config.json of one of PROCESSORS."""
    kind, size, crop, resample, pad = processor
    entries = {"image_processor_type": kind + "ImageProcessor", "size": size, "resample": resample}
    return {**entries, **({"crop_size": crop} if crop else {}), **({"do_pad": True} if pad else {})}


class ImagesCase(prompts.ModelCase):
    def processor(self, entries=SIGLIP, processor=None, config=None):
        """Writes the folder of an image processor. The default has 8 x 8 pixels and 4 placeholders."""
        for name, values in (("preprocessor_config.json", entries), ("config.json", config),
                             ("processor_config.json", {"patch_size": 4} if processor is None else processor)):
            if values is not None:
                self.write("processor/" + name, json.dumps(values))
            elif os.path.exists(self.path("processor/" + name)):
                os.remove(self.path("processor/" + name))
        return self.path("processor")

    def settings(self, *arguments, tokenizer=None):
        """Returns the Images of flags."""
        options = base.prepare.parse(["--bytes", "--chat", "--out", "x", "--image-processor", self.path("processor"),
                                      *arguments, "x"])
        return prepare_images.read_processor(options, tokenizer or prepare_images.Bytes())

    def pictures(self, count):
        """Writes images p0.png, p1.png, ... of 8 x 8 pixels, and returns their pixels."""
        for number in range(count):
            self.write("p%d.png" % number, image_file(LOSSLESS[0], number, 8, 8))
        self.processor()
        return [prepare_images.pixels_of(self.path("p%d.png" % number), self.settings()) for number in range(count)]

    def prepared(self, records, *arguments, name="c", tokenizer=("--bytes",), source="r.json"):
        """Prepares records. Returns [(ids, mask), ...], the header of the file of images, the index of the image in each place
        of the tokens, and the pixels of each image."""
        lines = source.endswith("l")
        self.write(source, "".join(json.dumps(r) + "\n" for r in records) if lines else json.dumps(records, indent=1))
        arguments = ("--prompt-format", "plain") if not arguments else arguments
        self.said = self.run_program(*tokenizer, "--chat", "--out", self.path(name), "--workers", 1, "--val-fraction", 0,
                                     "--overwrite", "--image-processor", self.path("processor"), *arguments,
                                     self.path(source))
        return self.read(name)

    def read(self, name, split="train"):
        """Returns the results of prepared() for existing files. Checks the file of images."""
        stem = "%s_%s_000000" % (name, split)
        rows = shared.ChatCase.read(self, stem + ".bin", 2)
        data = base.read_bytes(self.path(stem + ".images"))
        header = struct.unpack("<8iI2i6f", data[:68])
        self.assertEqual(header[:2], (20261129, 1))
        self.assertEqual((header[8:10], data[68:1024]), ((zlib.crc32(data[1024:]), 1), bytes(956)))
        images, side, channels, count, places, token = *header[2:7], header[10]
        size = channels * side * side
        self.assertEqual(len(data), 1024 + 4 * places + size * images)
        shown = [counts for ids, mask in rows for id_, counts in zip(ids, mask) if id_ == token]
        self.assertEqual(shown, [0] * count * places)
        pixels = data[1024 + 4 * places:]
        return (rows, header, list(array.array("I", data[1024:1024 + 4 * places])),
                [pixels[i * size:(i + 1) * size] for i in range(images)])


@unittest.skipUnless(base.have("PIL"), "needs Pillow: pip install pillow")
class ImagesTest(ImagesCase):
    def check_bytes(self, record, expected, *arguments):
        """Checks the example of a record. expected: the text of marked(), in which @ is an image and $ the EOS token."""
        rows, *rest = self.prepared([record], *arguments)
        self.assertEqual(rows, [shared.marked(expected, {"@": [255] * 4, "$": [256]})])
        return rest

    # --- pixels

    def test_pixels_equal_recorded_hashes(self):
        """Pixels are the same on every machine. test_pixels_equal_transformers compares the same images with transformers."""
        digest = hashlib.sha256()
        for at, processor in enumerate(PROCESSORS):
            self.processor(settings_of(processor))
            for aspect in prepare_images.ASPECTS:
                images = self.settings("--image-aspect", aspect)
                for number, kind in enumerate(LOSSLESS):
                    contents = image_file(kind, number, 9 + 7 * number % 40, 50 - 3 * number % 41)
                    pixels = prepare_images.pixels_of(contents, images)
                    self.assertEqual(len(pixels), 3 * images.side**2)
                    digest.update(pixels)
        self.assertEqual(digest.hexdigest(), RECORDED)

    def test_image_aspect_pads_crops_or_resizes(self):
        from PIL import Image

        wide = Image.new("RGB", (32, 8), (200, 100, 50))
        wide.paste((0, 0, 0), (0, 0, 16, 8))
        out = io.BytesIO()
        wide.save(out, "PNG")
        self.processor({"image_processor_type": "CLIPImageProcessor", "size": 8, "crop_size": 8})
        made = {aspect: prepare_images.pixels_of(out.getvalue(), self.settings("--image-aspect", aspect))
                for aspect in prepare_images.ASPECTS}
        self.assertEqual(made["processor"][:8], bytes([0] * 4 + [200] * 4))
        self.assertEqual((made["pad"][0], made["pad"][63], made["pad"][64]), (122, 122, 116))
        self.assertEqual((made["resize"][0], made["resize"][7], made["resize"][63]), (0, 200, 200))

    # --- the processor's folder

    def test_both_layouts_of_processor_folders_are_read(self):
        """Tests both layouts of a processor's folder, and the form of sizes in old files."""
        clip = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 336}, "resample": 3,
                "crop_size": {"height": 336, "width": 336}, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
        more = {"patch_size": 14, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
        self.processor(clip, more)
        made = self.settings()
        self.assertEqual(made, prepare_images.Images(336, 336, False, 3, [0.1, 0.2, 0.3], [0.4, 0.5, 0.6], 576, 255,
                                                     "<image>", "processor", ""))
        for old in ({"size": 336, "crop_size": 336}, {"size": {"height": 336, "width": 336}, "do_center_crop": False}):
            self.processor({**clip, **old, "crop_size": 336}, more)
            self.assertEqual(self.settings()._replace(size=336), made)
        self.processor(None, {**more, "image_processor": {**clip, "do_pad": None}})
        self.assertEqual(self.settings(), made)
        self.processor({"feature_extractor_type": "CLIPFeatureExtractor"}, more)
        self.assertEqual((self.settings().side, self.settings().mean[0]), (224, 0.48145466))
        self.processor({"image_processor_type": "SiglipImageProcessorFast", "size": 384}, {"patch_size": 14})
        self.assertEqual(self.settings()[:3] + (self.settings().rows,), (384, [384, 384], False, 27**2))

    def test_number_of_placeholders_per_image(self):
        """Tests the number of placeholders if processor_config.json has no patch_size."""
        clip = {"image_processor_type": "CLIPImageProcessor", "size": 28, "crop_size": 28}
        vision = {"model_type": "clip_vision_model", "patch_size": 7}
        for config, rows in (
                ({"model_type": "llava", "vision_config": vision}, 16),
                ({"model_type": "llava", "vision_config": vision, "vision_feature_select_strategy": "full"}, 17),
                ({"model_type": "llava", "vision_config": {"model_type": "siglip_vision_model", "patch_size": 7},
                  "vision_feature_select_strategy": "full"}, 16), (vision, 16), ({"model_type": "clip", "vision_config": vision}, 16),
                ({"model_type": "siglip_vision_model"}, 1), ({"image_seq_length": 5}, 5)):
            self.processor(clip, {}, config)
            self.assertEqual(self.settings().rows, rows, config)
        self.processor(clip, {"patch_size": 7, "num_additional_image_tokens": 1}, {"image_seq_length": 5})
        self.assertEqual(self.settings().rows, 17)
        # mlp_downsample merges 2 x 2 patches into one row and rounds an odd grid side up. The class token never counts.
        for patch, grid, rows in ((14, 2, 1), (9, 3, 4), (7, 4, 4), (5, 5, 9), (4, 7, 16), (28, 1, 1)):
            for more in ({}, {"num_additional_image_tokens": 1, "vision_feature_select_strategy": "full"}):
                self.processor(clip, {"patch_size": patch, **more}, {"mm_projector_type": "mlp_downsample"})
                self.assertEqual(self.settings().rows, rows, (grid, more))

    def test_unsupported_processor_folders_are_refused(self):
        source = self.write("r.jsonl", json.dumps({"prompt": "q", "response": "a"}) + "\n")
        for words, entries, processor in (
                ("PixtralImageProcessor", {"image_processor_type": "PixtralImageProcessor"}, None),
                ("preprocessor_config.json", {}, None), ("do_resize False", {**SIGLIP, "do_resize": False}, None),
                ("size {'shortest_edge': 5}", {**SIGLIP, "size": {"shortest_edge": 5}}, None),
                ("size {'height': 8, 'width': 9}", {**SIGLIP, "size": {"height": 8, "width": 9}}, None),
                ("size big", {**SIGLIP, "size": "big"}, None), ("resample 9", {**SIGLIP, "resample": 9}, None),
                ("image_std", {**SIGLIP, "image_std": [1, 0, 1]}, None), ("rescale_factor 1", {**SIGLIP, "rescale_factor": 1}, None),
                ("image_mean", {**SIGLIP, "image_mean": [1, "a", 1]}, None), ("patch_size", SIGLIP, {}),
                ("patch_size", SIGLIP, {"patch_size": 9}), ("do_pad True", {**SIGLIP, "do_pad": True}, None)):
            self.refused([words], *shared.PLAIN, "--out", self.path("c"), "--image-processor",
                         self.processor(entries, processor), source)
        self.refused(["processor_config.json", "is not a"], *shared.PLAIN, "--out", self.path("c"), "--image-processor",
                     os.path.dirname(self.write("broken/processor_config.json", "{")), source)

    def test_image_flags_without_a_processor_are_refused(self):
        source = self.write("r.jsonl", json.dumps({"prompt": "q", "response": "a"}) + "\n")
        for flag, value in (("--image-folder", "x"), ("--image-aspect", "pad"), ("--image-token", "5")):
            self.refused([flag, "--image-processor"], *shared.PLAIN, "--out", self.path("c"), flag, value, source, code=1)
        self.refused(["caption", "--image-processor"], "--bytes", "--chat", "--prompt-format", "caption", "--out",
                     self.path("c"), source, code=1)

    def test_images_without_chat_are_written_for_prompts(self):
        """--image-processor without --chat writes the images of the inputs, for the trainer's --image."""
        pixels = self.pictures(2)
        command = ("--bytes", "--out", self.path("p"), "--image-processor", self.path("processor"))
        for inputs in ([0], [1, 0, 1]):
            shown, _ = self.run_program(*command, *(self.path("p%d.png" % number) for number in inputs))
            self.assertIn("p.images: %d image" % len(set(inputs)), shown)
            data = base.read_bytes(self.path("p.images"))
            header, places = struct.unpack("<8iI2i6f", data[:68]), len(inputs)
            self.assertEqual(header[:7] + header[8:11], (20261129, 1, len(set(inputs)), 8, 3, 4, places,
                                                         zlib.crc32(data[1024:]), 1, 255))
            self.assertEqual(data[1024 + 4 * places:], b"".join(pixels[number] for number in dict.fromkeys(inputs)))
            self.assertFalse(os.path.exists(self.path("p_manifest.json")))
        for name, reason in (("absent.png", "is missing"), (self.write("r.jsonl", b"{}"), "is damaged")):
            self.refused([name, reason, "add --chat"], *command, name)

    def test_missing_pillow_names_the_pip_command(self):
        source = self.write("r.jsonl", json.dumps({"prompt": "q", "response": "a"}) + "\n")
        with unittest.mock.patch.dict(sys.modules, {"PIL": None, "PIL.Image": None}):
            self.refused(["pip install pillow"], *shared.PLAIN, "--out", self.path("c"), "--image-processor",
                         self.processor(), source)
            self.run_program(*shared.PLAIN, "--out", self.path("c"), "--workers", 1, source)

    # --- records and formats

    def test_records_with_several_or_no_images(self):
        """LLaVA's records with one, several or no images: equal pixels are stored once, in the order of the text."""
        pixels = self.pictures(3)
        self.write("copy.bmp", image_file(("BMP", "RGB", {}), 1, 8, 8))  # the pixels of p1.png

        def turns(*texts):
            return [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(texts)]

        records = [{"id": 1, "image": "p1.png", "conversations": turns("<image>\nq", "a")},
                   {"conversations": turns("x", "y")}, {"image": None, "conversations": turns("x", "z")},
                   {"image": ["p2.png", "p1.png"], "conversations": turns("<image>q<image>", "b")},
                   {"image": "copy.bmp", "conversations": turns("q", "c", "d\n<image>", "e")},
                   {"image": ["p0.png", "p2.png"], "conversations": turns("q", "f")}]
        rows, header, places, stored = self.prepared(records)
        self.assertEqual(places, [0, 1, 0, 0, 2, 1])
        self.assertEqual(stored, [pixels[1], pixels[2], pixels[0]])
        self.assertEqual(header[2:8] + header[10:11], (3, 8, 3, 4, 6, 0, 255))
        self.assertEqual(header[11:], (0.5,) * 6)
        image = [255] * 4
        self.assertEqual([ids for ids, _ in rows], [
            image + list(b"\nqa") + [256], list(b"xy") + [256], list(b"xz") + [256],
            image + [ord("q")] + image + [ord("b"), 256], list(b"qc") + [256] + list(b"d\n") + image + [ord("e"), 256],
            image + [10] + image + list(b"\nqf") + [256]])
        self.assertEqual(rows[3][1], [0] * 9 + [1, 1])
        self.assertIn("3 images, shown in 6 places", self.said[0])
        for aspect, number in (("pad", 1), ("resize", 2)):
            self.assertEqual(self.prepared(records, "--image-aspect", aspect, "--prompt-format", "plain")[1][7], number)
        self.assertEqual(self.prepared(records, source="r.jsonl")[:1], (rows,))

    def test_messages_with_lists_of_parts(self):
        """Tests content that is a list of parts. Images without a mark precede the first question."""
        self.pictures(2)
        image, text = {"type": "image"}, {"type": "text", "text": "q"}
        answer = [{"role": "assistant", "content": [{"type": "text", "text": "a"}]}]
        for content, expected in (([image, text], "@\nq[[a$]]"), ([text, image], "q\n@[[a$]]"), ([text], "@\nq[[a$]]"),
                                  ("q", "@\nq[[a$]]"), ("q<image>", "q@[[a$]]"),
                                  ([{"type": "text", "text": "<image> q"}], "@ q[[a$]]")):
            record = {"images": ["p0.png"], "messages": [{"role": "user", "content": content}, *answer]}
            self.check_bytes(record, expected)
        self.check_bytes({"images": [{"path": "p0.png", "bytes": None}], "prompt": "q", "response": "a"}, "@\nq[[a$]]")
        self.check_bytes({"image": "p0.png", "prompt": "q", "response": "a<image>b"}, "q[[a@b$]]")
        self.check_bytes({"image": "p0.png", "messages": messages("q", "a", system="S")}, "S@\nq[[a$]]")
        _, places, _ = self.check_bytes({"images": ["p1.png", "p0.png"], "messages": [
            {"role": "user", "content": [image, text, image]}, *answer]}, "@\nq\n@[[a$]]")
        self.assertEqual(places, [0, 1])
        self.check_bytes({"image": "p0.png", "prompt": "q", "response": "ab"}, "@[[\nqab$]]", "--prompt-format", "plain",
                         "--trained", "all")

    def test_fixed_formats_with_images(self):
        self.pictures(2)
        system = ("A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
                  "detailed, and polite answers to the user's questions. ")
        record = {"image": "p0.png", "messages": messages("<image>\nq", "a", "r", "b")}
        self.check_bytes(record, "%sUSER: @\nq ASSISTANT:[[ a$]]USER: r ASSISTANT:[[ b$]]" % system,
                         "--prompt-format", "vicuna")
        record["messages"] = messages("q", "a", system="S")
        self.check_bytes(record, "S USER: @\nq ASSISTANT:[[ a$]]", "--prompt-format", "vicuna")
        self.check_bytes(record, "@[[a$]]", "--prompt-format", "caption")
        self.check_bytes({"images": ["p0.png", "p1.png"], "prompt": "x<image>y<image>", "response": "a"}, "@@[[a$]]",
                         "--prompt-format", "caption")
        self.assertEqual((*prepare_prompts.FORMATS,).index("vicuna"), 6)

    @unittest.skipUnless(base.have("tokenizers"), "needs tokenizers: scripts/setup.sh --python")
    def test_id_of_the_image_placeholder(self):
        """The placeholder's id is that of the tokenizer, config.json or --image-token. Nearby texts keep their tokens."""
        pixels = self.pictures(1)
        tokenizer, arguments = self.model("legacy.json", "<image>")
        token, end = tokenizer.token_to_id("<image>"), tokenizer.token_to_id("</s>")
        record = {"image": "p0.png", "prompt": "<image>\nthe model", "response": "the step"}

        def ids(*texts):
            return [tokenizer.encode(text, add_special_tokens=False).ids if isinstance(text, str) else text for text in texts]

        begin, text, answer = ids([tokenizer.token_to_id("<s>")], "\nthe model", "the step")
        for more, number in (((), token), (("--image-token", "300"), 300)):
            rows, header, _, stored = self.prepared([record], "--prompt-format", "caption", *more, tokenizer=arguments)
            self.assertEqual((rows[0][0], header[10], stored), (begin + [number] * 4 + answer + [end], number, pixels))
        rows = self.prepared([record, {"prompt": "x", "response": "the step"}], "--prompt-format", "caption",
                             tokenizer=arguments)[0]
        self.assertEqual(rows[1][0], begin + answer + [end])
        rows = self.prepared([record], "--prompt-format", "chatml", "--image-token", "301", tokenizer=self.model(
            "legacy.json", "<|im_start|>", "<|im_end|>")[1])[0]
        at = rows[0][0].index(301)
        self.assertEqual(rows[0][0][at:at + 4 + len(text)], [301] * 4 + text)
        self.processor(config={"image_token_index": 302})
        tokenizer, arguments = self.model("legacy.json")
        self.assertEqual(self.prepared([record], "--prompt-format", "caption", tokenizer=arguments)[1][10], 302)
        self.processor()
        size = tokenizer.get_vocab_size()  # a joined model uses the id after the tokenizer's last one
        self.assertEqual(self.prepared([record], "--prompt-format", "caption", tokenizer=arguments)[1][10], size)
        for more in ("--image-token", "<x>"), ("--image-token", "70000"):
            self.refused(["--image-token"], *arguments, "--chat", "--prompt-format", "caption", "--out", self.path("c"),
                         "--image-processor", self.path("processor"), *more, self.path("r.json"))

    @unittest.skipUnless(base.have("tokenizers", "jinja2"), "needs tokenizers and jinja2: scripts/setup.sh --python")
    def test_chat_templates_with_images(self):
        self.pictures(1)
        text = {"prompt": "<image>\nthe model", "response": "the step"}
        parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "the model"}, {"type": "image"}]},
                              {"role": "assistant", "content": "the step"}]}
        plain = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
        for template, shown in ((TEMPLATE, ["USER: <image>\nthe model ASSISTANT: the step "] * 2),
                                (plain, ["[user]<image>\nthe model[assistant]the step",
                                         "[user]the model\n<image>[assistant]the step"])):
            tokenizer, arguments = self.model("qwen.json", "<image>", chat_template=template)
            tokenizer.encode_special_tokens = False
            token = tokenizer.token_to_id("<image>")
            more = () if template == TEMPLATE else ("--trained", "all")
            rows = self.prepared([{**text, "image": "p0.png"}, {**parts, "image": "p0.png"},
                                  {"prompt": "the", "response": "a"}], "--prompt-format", "template", *more,
                                 tokenizer=arguments)[0]
            for (ids, mask), wanted in zip(rows, shown):
                made = [(t,) * (4 if t == token else 1) for t in tokenizer.encode(wanted).ids]
                self.assertEqual(ids, [t for group in made for t in group])
            self.assertEqual(rows[2][0], tokenizer.encode("USER: the ASSISTANT: a " if template == TEMPLATE else
                                                          "[user]the[assistant]a").ids)
        _, arguments = self.model("qwen.json", "<image>", chat_template=plain.replace(
            "m['content']", "m['content'].replace('<image>', '')"))
        self.refused(["record 1", "0 placeholders", "1 images"], *arguments, "--chat", "--trained", "all", "--out",
                     self.path("c"), "--image-processor", self.path("processor"), "--overwrite", self.path("r.json"))

    @unittest.skipUnless(base.have("pyarrow"), "needs pyarrow")
    def test_parquet_images_are_read(self):
        import pyarrow as pa
        import pyarrow.parquet as parquet

        pixels = self.pictures(2)
        rows = []
        for number in (0, 1, 0):
            contents = base.read_bytes(self.path("p%d.png" % number))
            content = [{"type": "text", "text": "q", "index": None}, {"type": "image", "text": None, "index": 0}]
            rows.append({"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": [
                {"type": "text", "text": "a%d" % len(rows), "index": None}]}], "images": [{"bytes": contents, "path": None}]})
        rows.append({"messages": rows[0]["messages"], "images": [{"bytes": None, "path": "p1.png"}]})
        parquet.write_table(pa.Table.from_pylist(rows), self.path("t.parquet"), row_group_size=2)
        self.run_program(*shared.PLAIN, "--out", self.path("c"), "--workers", 1, "--val-fraction", 0, "--image-processor",
                         self.path("processor"), self.path("t.parquet"))
        made, _, places, stored = self.read("c")
        self.assertEqual((places, stored), ([0, 1, 0, 1], pixels))
        self.assertEqual(made[2][0], list(b"q\n") + [255] * 4 + list(b"a2") + [256])

    # --- bad records

    def test_malformed_images_are_refused_or_skipped(self):
        """Bad images and marks name the file and the record; --skip-malformed skips such records."""
        from PIL import Image

        self.pictures(1)
        picture = image_file(("JPEG", "RGB", {}), 1, 90, 70)
        self.write("short.jpg", picture[:len(picture) // 2])
        self.write("short.png", image_file(LOSSLESS[0], 1, 90, 70)[:9000])
        self.write("text.png", "no image")
        self.write("empty.png", "")
        self.write("page.eps", "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EOF\n")
        for name, width, height in (("bomb.png", 60000, 60000), ("limit.png", 178956971, 1)):
            self.write(name, image_file(LOSSLESS[0], 1, 1, 1).replace(struct.pack(">II", 1, 1), struct.pack(
                ">II", width, height)))
            data = bytearray(base.read_bytes(self.path(name)))
            data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
            self.write(name, bytes(data))
        Image.new("1", (40000, 1)).save(self.path("thin.png"))
        good = {"image": "p0.png", "prompt": "q", "response": "a"}
        for words, change in (("missing", {"image": "none.png"}), ("missing", {"image": "."}), ("missing", {"image": "a\0b"}),
                              ("truncated", {"image": "short.jpg"}), ("short.png", {"image": "short.png"}),
                              ("damaged, or not PNG", {"image": "text.png"}), ("damaged, or not", {"image": "empty.png"}),
                              ("damaged, or not", {"image": "page.eps"}), ("exceeds limit", {"image": "bomb.png"}),
                              ("exceeds limit", {"image": "limit.png"}), ("neither a path", {"image": 5}),
                              ("neither a path", {"image": [None]}), ("keep one", {"images": ["p0.png"]}),
                              ("2 <image> in its text, but 1 images", {"prompt": "<image><image>"}),
                              ("1 <image> in its text, but 2 images", {"image": ["p0.png"] * 2, "prompt": "<image>"}),
                              ("1 <image> in its text, but 0 images", {"image": None, "response": "<image>"}),
                              ("1 placeholders", {"input_ids": [1, 255], "labels": [1, 255]}),
                              ("neither an image nor a text", {"prompt": None, "response": None, "messages": [
                                  {"role": "user", "content": [{"type": "video"}]}, {"role": "assistant", "content": "a"}]}),
                              ("neither an image nor a text", {"prompt": None, "response": None, "messages": [
                                  {"role": "user", "content": [5]}, {"role": "assistant", "content": "a"}]})):
            record = {key: value for key, value in {**good, **change}.items() if value is not None}
            source = self.write("m.jsonl", "".join(json.dumps(r) + "\n" for r in (good, record, good)))
            arguments = (*shared.PLAIN, "--out", self.path("m"), "--workers", 1, "--val-fraction", 0, "--overwrite",
                         "--image-processor", self.path("processor"))
            self.refused(["m.jsonl, line 2", words], *arguments, source)
            _, errors = self.run_program(*arguments, "--skip-malformed", source)
            self.assertIn("line 2", errors)
            rows, _, places, stored = self.read("m")
            self.assertEqual((len(rows), places, len(stored)), (2, [0, 0], 1), words)
        self.processor({"image_processor_type": "CLIPImageProcessor", "size": 224, "crop_size": 224})
        for more in ((), ("--image-aspect", "pad")):
            source = self.write("m.json", json.dumps([good, {**good, "image": "thin.png"}]))
            self.refused(["m.json, record 2", "thin.png", "more than 178956970"], *arguments, *more, source)
        source = self.write("m.jsonl", json.dumps(good) + "\n")
        self.refused(["line 1", "add --image-processor"], *shared.PLAIN, "--out", self.path("m"), "--overwrite", source)

    # --- files

    def records(self, count):
        return [{"image": ["p%d.png" % (i * i % 7)] * (i % 3), "prompt": "q%d" % i, "response": "a%d" % i}
                for i in range(count)]

    def test_output_does_not_depend_on_workers_and_stops(self):
        """Any number of workers and a stop at any unit give the same bytes. Damaged images are regenerated."""
        self.pictures(7)
        self.addCleanup(setattr, prepare_inputs, "IMAGE_UNIT_BYTES", prepare_inputs.IMAGE_UNIT_BYTES)
        prepare_inputs.IMAGE_UNIT_BYTES = 300
        for name in ("r.jsonl", "r.json"):
            records = self.records(30)
            source = self.write(name, json.dumps(records) if name == "r.json" else "".join(json.dumps(r) + "\n" for r in records))
            arguments = [*shared.PLAIN, "--out", self.path("r"), "--val-fraction", "0.3", "--shard-tokens", "100",
                         "--image-processor", self.path("processor"), "--image-folder", self.folder, source]
            snapshots = []
            for workers in ("1", "3"):
                self.run_program(*arguments, "--workers", workers, "--overwrite")
                snapshots.append(self.snapshot())
            self.assertTrue(snapshots[0] == snapshots[1])
            self.assertTrue({"r_train_000000.images", "r_val_000000.images"} <= set(snapshots[0]))
        self.assertGreater(self.stop_everywhere([*arguments, "--workers", "1"], snapshots[0]), 2)
        os.remove(self.path("r_train_000000.images"))
        _, errors = self.run_program(*arguments, "--workers", "1")
        self.assertIn("r_train_000000.images is missing", errors)
        self.assertEqual(self.snapshot(), snapshots[0])
        self.refused(["other settings"], *arguments, "--image-aspect", "pad")

    def test_examples_without_images_give_an_ordinary_file(self):
        """A token file whose examples have no images has version 1 and no .images file."""
        self.processor()
        source = self.write("t.jsonl", json.dumps({"prompt": "q", "response": "a"}) + "\n")
        arguments = (*shared.PLAIN, "--out", self.path("r"), "--workers", 1, "--val-fraction", 0)
        self.run_program(*arguments, source)
        before = self.snapshot()
        self.write("r_train_000000.images", "of an earlier run")
        self.run_program(*arguments, "--overwrite", "--image-processor", self.path("processor"), source)
        self.assertEqual(self.snapshot(), before)


@unittest.skipUnless(base.have("PIL", "transformers", "numpy"), "needs Pillow, numpy and transformers")
class TransformersTest(ImagesCase):
    @unittest.skipUnless(base.have("jinja2"), "needs jinja2")
    def test_chat_templates_equal_llava_processor(self):
        """Examples of a chat template have the tokens that LlavaProcessor gives the same chat, with one BOS token."""
        import transformers

        self.pictures(2)
        chats = []
        for turns in (([0, "the model"], ["the step"]), (["a", 1, 0], ["b"], ["c\n"], ["d"]), (["x"], ["y"])):
            chats.append([{"role": ("user", "assistant")[number % 2], "content": [
                {"type": "text", "text": part} if isinstance(part, str) else
                {"type": "image", "path": self.path("p%d.png" % part)} for part in turn]}
                for number, turn in enumerate(turns)])
        records = [{"messages": chat, "images": [part["path"] for message in chat for part in message["content"]
                                                 if "path" in part]} for chat in chats]
        for template in (TEMPLATE, "{{ bos_token }}" + TEMPLATE):
            _, arguments = self.model("legacy.json", "<image>", chat_template=template,
                                                                  bos_token="<s>")
            rows = self.prepared(records, "--prompt-format", "template", tokenizer=arguments)[0]
            tokens = transformers.PreTrainedTokenizerFast(tokenizer_file=self.path("model/tokenizer.json"), bos_token="<s>")
            theirs = transformers.LlavaProcessor(
                transformers.SiglipImageProcessor(size={"height": 8, "width": 8}), tokens, patch_size=4,
                vision_feature_select_strategy="full", chat_template=template)
            for chat, (ids, _) in zip(chats, rows):
                made = theirs.apply_chat_template(chat, tokenize=True, return_dict=True)
                self.assertEqual(ids, list(made["input_ids"][0]))
                self.assertEqual(ids.count(1), 1)

    def test_pixels_equal_transformers(self):
        """The pixels of 200 images of odd sizes, modes and formats are equal, and their floats are those of a table of 256 values."""
        import numpy
        import transformers

        pick, kinds, equal, compared = random.Random(1), LOSSLESS + OTHERS, 0, 0
        for number in range(200):
            small = number < len(LOSSLESS)
            size = (9 + 7 * number % 40, 50 - 3 * number % 41) if small else (pick.randrange(4, 700), pick.randrange(4, 500))
            source = self.write("p%d" % number, image_file(kinds[number % len(kinds)], number, *size))
            if transformers.__version__ < "5" and "transparency" in kinds[number % len(kinds)][2]:
                continue  # transformers 4 ignores a transparent color
            for processor in PROCESSORS + LARGE:
                folder = self.processor(settings_of(processor))
                theirs = getattr(transformers, processor[0] + "ImageProcessor").from_pretrained(folder)
                images = self.settings()
                made = numpy.frombuffer(prepare_images.pixels_of(source, images), numpy.uint8).reshape(
                    3, images.side, images.side)
                wanted = theirs(source, do_rescale=False, do_normalize=False)["pixel_values"][0]
                equal += wanted.dtype == numpy.uint8 and numpy.array_equal(made, wanted)
                compared += 1
                mean, std = (numpy.array(v, numpy.float32).reshape(3, 1) for v in (images.mean, images.std))
                table = ((numpy.arange(256, dtype=numpy.float64) * (1 / 255)).astype(numpy.float32) - mean) / std
                floats = numpy.stack([table[channel][made[channel]] for channel in range(3)])
                self.assertTrue(numpy.array_equal(floats, theirs(source)["pixel_values"][0]), (number, processor))
        print("# transformers %s: %d of %d prepared images equal" % (transformers.__version__, equal, compared))
        self.assertEqual(equal, compared)

    def test_placeholders_equal_llava_processor(self):
        """LlavaProcessor's files are read, and LlavaProcessor makes the same number of placeholders per image."""
        import tokenizers
        import transformers

        words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "</s>": 2}, unk_token="a"))
        words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        words = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>",
                                                     extra_special_tokens={"image_token": "<image>"})
        source = self.write("p.png", image_file(LOSSLESS[0], 1, 50, 70))
        for kind, size, patch, more, strategy in (("CLIP", 56, 14, 1, "default"), ("CLIP", 56, 14, 1, "full"),
                                                  ("Siglip", 60, 14, 0, "full"), ("Siglip", 64, 16, 0, "default")):
            own = {"CLIP": {"size": {"shortest_edge": size}, "crop_size": size}, "Siglip": {"size": {
                "height": size, "width": size}}}[kind]
            theirs = transformers.LlavaProcessor(getattr(transformers, kind + "ImageProcessor")(**own), words,
                                                 patch_size=patch, num_additional_image_tokens=more,
                                                 vision_feature_select_strategy=strategy)
            theirs.save_pretrained(self.path("processor"))
            count = theirs(images=source, text="a <image> b")["input_ids"][0].count(theirs.image_token_id)
            images = self.settings("--tokenizer", self.path("processor"), tokenizer=prepare_images.Bytes())
            self.assertEqual(images.rows, count)
            tokenizer = base.prepare_tokenizers.open_tokenizer(self.path("processor"))
            self.assertEqual(self.settings(tokenizer=tokenizer).token, theirs.image_token_id)
            self.write("processor/preprocessor_config.json", "{}")  # because newer versions of transformers write another file
            os.remove(self.path("processor/preprocessor_config.json"))


if __name__ == "__main__":
    base.run(TransformersTest if sys.argv[1:] == ["--transformers"] else ImagesTest)
