#!/usr/bin/env python3
"""Makes and scores the task of docs/finetuning.md: additions of two numbers from 10 to 49, as bytes.

    dev/tools/additions.py make OUT
        writes 1501 additions to OUT_train.jsonl and the other 99 to OUT_test.jsonl
    dev/tools/additions.py score TEST.jsonl PROGRAM FOLDER
        prints how many questions the model in FOLDER answers correctly

A model that has learned 12+34 also knows 34+12, so both are in the same file. An answer is correct if greedy decoding
yields the sum and then the end-of-text token. PROGRAM is the trainer, which is started once per question.
"""
import concurrent.futures
import json
import os
import random
import subprocess
import sys

HELD_OUT = 50  # pairs of numbers in the test file
END, LONGEST = 256, 8  # EOS token; maximum tokens of an answer


def make(out):
    pairs = [(a, b) for a in range(10, 50) for b in range(10, a + 1)]
    pick = random.Random(1)
    pick.shuffle(pairs)
    for split, part in (("train", pairs[HELD_OUT:]), ("test", pairs[:HELD_OUT])):
        both = sorted({pair for a, b in part for pair in ((a, b), (b, a))})
        pick.shuffle(both)
        with open("%s_%s.jsonl" % (out, split), "w", encoding="utf-8") as file:
            for a, b in both:
                file.write(json.dumps({"prompt": "%d+%d=" % (a, b), "response": str(a + b)}) + "\n")


def answer(program, folder, prompt):
    done = subprocess.run([program, "--model", folder, "--prompt", prompt, "--temperature", "0", "--sample-tokens",
                           str(LONGEST), "--threads", "1", "--json"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    ids = json.loads(done.stdout)["sample"]
    return bytes(ids[:ids.index(END)]).decode(errors="replace") if END in ids else None


def score(test, program, folder):
    with open(test, encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    if not records:
        sys.exit("error: %s: contains no questions" % test)
    answer(program, folder, records[0]["prompt"])  # ends the program if the trainer fails, before many threads start it
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(lambda record: answer(program, folder, record["prompt"]), records))
    right = sum(record["response"] == said for record, said in zip(records, answers))
    print("%d of %d right, %.1f %%" % (right, len(records), 100 * right / len(records)))


if __name__ == "__main__":
    try:
        if len(sys.argv) == 3 and sys.argv[1] == "make":
            make(sys.argv[2])
        elif len(sys.argv) == 5 and sys.argv[1] == "score":
            score(*sys.argv[2:])
        else:
            sys.exit(__doc__)
    except (OSError, ValueError, KeyError) as problem:
        sys.exit("error: %s" % problem)
