"""Compares the paper's tables with this program's figures for the same models, measured
on this machine's GPUs. Memory that the machine cannot measure comes from the trainer's
--plan and is marked as planned. Writes OUT/reproduce.md and a log per command.
`scripts/lab.py draw OUT` draws the memory of table 7 and the optimizer states of table 1.
scripts/results contains losses, figures of other programs, and differences from the
paper's method.

    scripts/lab.py reproduce [--dry-run] [--out runs/reproduce] [PIECE...]

  table1        quantization error of the optimizer's states of OLMo-1B, at several
                points of training
  table2        bytes of a layer's saved activations by kind of operation; needs no GPU
  table6        one layer, forward and backward: time and memory
  table7        speed and memory of Llama-2-7B, Llama-2-13B, Llama-30B and OLMo-7B, on
                1 to 8 GPUs of 80 GB
  figure4       time to compute the amax of a tensor with and without Group Scaling
  gpt2          speed and memory of GPT-2 124M and 1558M on one GPU
  all           all pieces (default). Takes about 50 minutes on one H100 (table1 18, gpt2
                24), 6 minutes with QUICK=1, 1 minute without a GPU

The page contains only the named pieces, and replaces an earlier page in OUT. If the
machine has several GPUs, measurements that need one GPU run first, one on each GPU at the
same time. Measurements that need several GPUs follow.

Environment:
  TRAIN=GLOB            GPT-2 tokens of real text. Without it, or without a GPU, a small
                        byte-level model is trained. For Llama, tokens outside its
                        vocabulary of 32,000 are dropped
  TOKENS=33554432       tokens of each of table1's two runs of OLMo-1B (2097152 with
                        QUICK=1). A run takes 30 GB of disk until it ends
  QUICK=1               fewer steps per measurement; rows with the largest micro-batches
                        are planned, not measured
  TEXT=FOLDER           training text of the byte-level model (default: header files of
                        this machine)
  STEPS=400             training steps of the byte-level model
  SPEED_STEPS=20        steps of each speed measurement (6 with QUICK=1); only the
                        second half is timed
  MPIRUN="mpirun --bind-to none"   starts measurements of several GPUs
  BIN=. BUILD=build     folders of the programs
  VERSION=NAME          version on the page (default: git describe)
"""
import collections
import contextlib
import datetime
import functools
import glob
import json
import os
import re
import shlex
import shutil
import sys
import time

from . import reproduce_tables as tables
from . import reproduce_texts as texts
from . import work as lab
from .results import Failure, markdown, read_text, remove, write_file
from .work import check_built, number, output_of, recipe_flags, setting

PIECES = ["table1", "table2", "table6", "table7", "figure4", "gpt2"]
BETAS = ["0.95", "0.999"]
LAYER_RECIPES = ["bf16", "bf16 --recompute 2", "fp8-linear", "coat"]
# The paper's layer is OLMo's with heads of 128 and an MLP of 2.69 times the width.
LAYERS = ["2048", "4096", "llama2-7b", "olmo-1b"]
BENCH_LAYER = ["bench_layer", "--block", "olmo", "--model", "llama2-7b", "--model", "olmo-1b"]
# rows of the paper's table 7, and of OLMo-7B: model, GPUs, micro-batch of all recipes, sequence length
PAPER_MODELS = [("llama2-7b", 1, 1, 2048), ("olmo-7b", 1, 1, 2048), ("llama2-7b", 2, 2, 2048), ("olmo-7b", 2, 2, 2048),
                ("llama2-13b", 2, 1, 1024), ("llama2-7b", 4, 2, 2048), ("llama2-7b", 8, 2, 2048),
                ("llama2-13b", 4, 1, 2048), ("llama2-13b", 8, 1, 2048), ("llama-30b", 8, 1, 2048)]
GPT2_MODELS = [("gpt2-xl", 1, 16, 1024), ("gpt2", 1, 64, 1024)]
NARROW_TOKENS = 4194304  # more tokens than any speed measurement of a large model reads


class Broken(Failure):
    """A failed command. row: a paragraph for the page about the failure."""

    def __init__(self, command, status, reason, log):
        super().__init__(f"{reason} (see {log})")
        self.row = f"**Failed**, status {status}: `{shlex.join(command)}`: {reason}"


class Reproduce:
    def __init__(self, options):
        self.work, self.out, self.dry = lab.Work(options.out, options.dry_run), options.out, options.dry_run
        self.pieces, self.page, self.done, self.started = options.words, [], {}, time.time()
        self.quick, self.gpus, self.train = setting("QUICK"), self.work.gpus, setting("TRAIN")
        self.tokens, self.steps, self.speed_steps = (number(name, setting(name, default), 1) for name, default in (
            ("TOKENS", 2097152 if self.quick else 33554432), ("STEPS", 400), ("SPEED_STEPS", 6 if self.quick else 20)))
        memory = lab.query_gpus("memory.total", "csv,noheader,nounits") if self.gpus else []
        # memory of the GPU with the least memory, in bytes; 0: unknown
        self.memory = min((int(line) * 2**20 if line.isdigit() else 0 for line in memory), default=0)
        self.real_text = bool(self.gpus and self.train)
        if self.train and not self.gpus:
            lab.tell("note: TRAIN is ignored, because no GPU supports FP8; a byte-level model is trained instead")
        self.planner, self.trainer = lab.CPU_TRAINER, lab.GPU_TRAINER if self.gpus else lab.CPU_TRAINER
        self.paper, self.mpirun = tables.read_paper(), setting("MPIRUN", "mpirun --bind-to none")

    def check_built(self):
        build, gpu = lab.BUILD, bool(self.gpus)
        needed = {"table1": [self.trainer, build + "/quant_error"] + [build + "/prepare_bytes"] * (not self.real_text),
                  "table2": [self.planner], "table6": [build + "/bench_layer_gpu" if gpu else self.planner],
                  "table7": [self.planner, self.trainer] + [build + "/narrow_tokens"] * self.real_text,
                  "gpt2": [self.planner, self.trainer], "figure4": [build + "/bench_group_scaling_gpu"] * gpu}
        for piece in self.pieces:
            check_built(needed.get(piece, []), piece + ": ")

    def run(self, log, command):
        """Runs a command and writes its output to OUT/LOG, unless that has been done. Returns the output; "" in a dry
        run, which prints the command."""
        path = os.path.join(self.out, log)
        if log not in self.done:
            if not self.dry:
                minutes, seconds = divmod(int(time.time() - self.started), 60)
                lab.tell(f"{minutes}:{seconds:02} running {shlex.join(command)}")
            self.done[log] = self.work.run(path, command)
        if self.dry:
            return ""
        if self.done[log]:
            raise Broken(command, self.done[log], lab.error_in(read_text(path)), path)
        return read_text(path)

    def say(self, *paragraphs):
        for paragraph in paragraphs:
            self.page += [*([paragraph] if isinstance(paragraph, str) else paragraph), ""]

    def broken(self, failure):
        """Reports a failed command on stderr and on the page."""
        self.work.report(failure)
        self.say(failure.row)

    @functools.lru_cache(None)
    def plan(self, *flags):
        """Returns the memory plan for these flags of the trainer, as parsed JSON; {} if no micro-batch fits."""
        command = [self.planner, "--plan=json", *map(str, flags)]
        if self.dry:
            print(shlex.join(command))
        return json.loads((not self.dry and output_of(*command)) or "{}")

    def head(self):
        cpu = re.search("^model name[^:]*: (.*)", read_text("/proc/cpuinfo") + "\nmodel name: unknown", re.M)[1]
        rows = [["date", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ")]]
        gpus = lab.query_gpus("name,memory.total,driver_version") if self.gpus else []
        for gpu, count in collections.Counter(gpus).items():
            rows.append(["GPU", "{} x {}, {}, driver {}".format(count, *gpu.split(", "))])
        rows.append(["libraries", library_versions(self.trainer)] if self.gpus else
                    ["GPU", "none for FP8: rows with **planned, not measured** are from --plan"])
        names = ["QUICK", "STEPS", "TEXT", "SPEED_STEPS", "TRAIN", "TOKENS"]
        minutes, seconds = divmod(int(time.time() - self.started), 60)
        rows += [["CPU", f"{cpu}, {os.cpu_count()} cores"], ["version", lab.version_of(self.planner)],
                 ["command", f"`{lab.command_line('reproduce', names, sys.argv[2:])}`"],
                 ["took", f"{minutes} min {seconds} s"]]
        return ["# COAT's tables, reproduced", "", *markdown(["", ""], rows), "", texts.HEAD, ""]

    # --- table 1: the FP32 states of runs in BF16, one for each beta2, at a few steps ---------------------------------

    @functools.lru_cache(None)
    def states_model(self):
        """Returns (description, flags of the trainer, N, steps at which the states are measured). quant_error measures
        one of every N groups."""
        if self.real_text:
            about, steps, every = "OLMo-1B, 65,536 tokens per step, one " + lab.gpu_name(), -(-self.tokens // 65536), 16
            flags = "--model olmo-1b --seq-len 2048 --micro-batch 8 --batch-tokens 65536 --lr 2e-4 --eps 1e-5"
            files = self.train
        else:
            about = "a byte-level model with OLMo's blocks, 2 layers of 128 channels, 1,024 tokens per step"
            flags = "--model olmo:d2 --tokenizer bytes --seq-len 128 --micro-batch 8 --lr 4e-3"
            files, steps, every = self.out + "/text_train.bin", self.steps, 1
            self.run("text.log", [lab.BUILD + "/prepare_bytes", setting("TEXT", "--headers"), "--overwrite",
                                  "--out", self.out + "/text"])
        flags += f" --schedule constant --warmup {steps // 5} --weight-decay 0.1 --seed 1"
        points = [steps // part for part in ((4, 1) if self.quick else (16, 4, 1)) if steps // part]
        return about, [*flags.split(), "--train", files], every, points

    def measure_states(self, beta):
        """Trains with this beta2. Returns quant_error's output for each measured step. Removes the checkpoints even
        after a failure, because they take gigabytes."""
        _, model, every, points = self.states_model()
        folder, logs = f"{self.out}/states-{beta}", []
        try:
            for step in points:
                self.run(f"train-{beta}-{step}.log", [
                    self.trainer, *model, "--beta2", beta, "--recipe", "bf16", "--master", "split16", "--steps",
                    str(step), "--sample-tokens", "0", "--quiet", "--keep", "1", "--out", folder,
                    "--overwrite" if step == points[0] else "--resume"])
                histograms = [f"{self.out}/ranges-{beta}.tsv"] * (step == points[-1])
                logs.append(self.run(f"quant_error-{beta}-{step}.log", [
                    lab.BUILD + "/quant_error", "--every", str(every), f"{folder}/step-{step:08}", *histograms]))
        finally:
            if not self.dry:
                remove(folder, "step-*", ".step-*")
        return logs

    def table1(self):
        self.say("## Quantization error of the optimizer's states (table 1)")
        about, _, every, points = self.states_model()
        logs = {beta: self.measure_states(beta) for beta in BETAS}
        if self.dry:
            return
        groups = "in all groups" if every == 1 else f"in one of every {every} groups"
        self.say(texts.TABLE1 % (about, groups), tables.states_table(
            (beta, step, log) for beta in BETAS for step, log in zip(points, logs[beta])))
        for beta in BETAS:
            self.say(f"All pairs of formats at beta2 {beta}, step {points[-1]}, relative to plain E4M3 for both "
                     "moments (the paper's 20.10 has no unit; its beta2 is 0.95):",
                     tables.error_table(self.paper, logs[beta][-1]))

    # --- tables 2 and 6, figure 4 -------------------------------------------------------------------------------------

    def layer_plans(self, layer, length, recipe):
        """Returns the memory plans of a model with one such layer and of a model with two."""
        for layers in (1, 2):
            flags = ["--model", layer, "--layers", layers]
            if layer.isdigit():
                flags = ["--model", f"olmo:d{layers}", "--heads", int(layer) // 128, "--channels", layer,
                         "--ffn", int(layer) * 43 // 16]
            yield self.plan(*flags, "--seq-len", length, "--micro-batch", 4, "--recipe", *recipe.split())

    def table2(self):
        plans = [(recipe, *self.layer_plans("4096", 2048, recipe)) for recipe in LAYER_RECIPES]
        self.say("## Saved activations of a layer (table 2)", texts.TABLE2)
        if not self.dry:
            self.say(tables.saved_table(self.paper, plans, 2 * 4096 * 4 * 2048))

    def planned_layers(self):
        for layer in LAYERS:
            width = layer if layer.isdigit() or self.dry else re.search(
                "([0-9]+) channels", output_of(self.planner, "--plan", "--model", layer))[1]
            for length in (2048, 4096):
                for recipe in LAYER_RECIPES:
                    one, two = (0 if self.dry else plan["categories"]["saved"]
                                for plan in self.layer_plans(layer, length, recipe))
                    yield ("olmo" if layer.isdigit() else layer, width, length, recipe, None, None, None,
                           (two - one) // (4 * length))

    def bench(self, name, *flags):
        return self.run(name + ".log", [f"{lab.BUILD}/{name}_gpu", *["--quick"] * bool(self.quick), *flags])

    def table6(self):
        self.say("## One layer (table 6)", texts.TABLE6)
        rows = list(self.planned_layers()) if not self.gpus else [
            (layer, *at.split(", "), recipe, forward, backward, both, int(saved))
            for layer, at, recipe, forward, backward, both, _, saved in re.findall(
                r"^\| ([a-z0-9.:-]+) \| (\d+, \d+) \|" + r" *([^|]*?) *\|" * 6, self.bench(*BENCH_LAYER), re.M)]
        if not self.dry:
            self.say(tables.layer_table(self.paper, rows), texts.TABLE6_RATIO)

    def figure4(self):
        self.say("## The amax of a tensor (figure 4)", texts.FIGURE4)
        if self.dry and not self.gpus:
            print("# figure4 needs a GPU for FP8: without one nothing runs, and the page has only the paper's figures")
        found = re.findall(r"^\| (\d+) x (\d+) \| *([\d.]+)[^|]*\|[^|]*\| *([\d.]+)[^|]*\| *([\d.]+)",
                           self.bench("bench_group_scaling") if self.gpus else "", re.M)
        if not self.dry:
            self.say(tables.maximum_table(self.paper, {row[:2]: row[2:] for row in found}))

    # --- table 7, and GPT-2 in the same form --------------------------------------------------------------------------

    def model_plan(self, model, gpus, length, recipe, *flags):
        recipe, *more = recipe_flags(recipe)[1:]
        master = ["--master", "fp32"] * (recipe == "fp8-linear")  # --master must have the values of scripts/measure.sh
        return self.plan("--model", model, "--seq-len", length, "--gpus", gpus, "--zero", 3 if gpus > 1 else 0,
                         "--recipe", recipe, "--master", "split16", *more, *master, *flags)

    def model_settings(self, model, gpus, batch, length):
        """Yields (setting, recipe, micro-batch, plan). The setting "equal batch" has micro-batch `batch` in all
        recipes. The other settings have each recipe's largest micro-batch in the setting's memory, or 0 and {} if none
        fits."""
        gpt2 = model.startswith("gpt2")
        for name in ["equal batch", "largest in 80GB"] + ["largest in 141GB"] * (gpt2 and self.memory >= 141e9):
            for recipe in ["bf16", "fp8-linear", "coat"] + ["coat,head=fp8"] * gpt2:
                of, largest = (model, gpus, length, recipe), batch
                if name != "equal batch":
                    largest = self.model_plan(*of, "--memory-limit", name.split()[-1]).get("largest_micro_batch", 0)
                    largest = "LARGEST" if self.dry else largest
                yield name, recipe, largest, self.model_plan(*of, "--micro-batch", largest) if largest else {}

    def is_measured(self, gpus, name, plan):
        """True if token files, enough GPUs and enough memory exist to measure this row. The plan does not contain the
        memory of CUDA (0.6 GB) and NCCL (up to 1.5 GB). QUICK=1 measures only equal batches."""
        room = plan.get("total_bytes", 0) + (2.2e9 if gpus > 1 else 1e9)
        return (self.real_text and len(self.gpus) >= gpus and (self.dry or not self.memory or self.memory >= room) and
                (gpus == 1 or shutil.which(self.mpirun.split()[0])) and (not self.quick or name == "equal batch"))

    def narrow_text(self):
        self.run("narrow.log", [lab.BUILD + "/narrow_tokens", "32000", str(NARROW_TOKENS), self.train,
                                self.out + "/narrow.bin"])

    def measure_model(self, model, gpus, recipe, batch, length):
        """Returns (tokens/s per GPU, planned GB, GB that the driver reports) as text; None if scripts/measure.sh
        measured nothing."""
        name, llama = f"speed-{model}-{gpus}-{recipe}-{batch}", model.startswith("llama")
        if llama:
            self.narrow_text()
        words = self.run(name + ".log", [
            "env", f"MODELS={model}", f"GPUS={gpus}", f"MICRO_BATCH={batch}", f"LENGTH={length}",
            f"STEPS={self.speed_steps}", f"PROGRAM={self.trainer}", f"MPIRUN={self.mpirun}",
            *["STEP_TOKENS=32768"] * (not model.startswith("gpt2")),
            f"OUT={self.out}/{name}", "scripts/measure.sh", self.out + "/narrow.bin" if llama else self.train,
            recipe]).rpartition("\n" + model)[2].split()
        return (words[1], *words[3:]) if len(words) == 5 and tables.value(words[1]) else None

    def models_rows(self, models):
        for model, gpus, batch, length in models:
            for name, recipe, largest, plan in self.model_settings(model, gpus, batch, length):
                parts = plan.get("categories", {})
                row = {"model": model, "gpus": str(gpus), "batch": str(batch), "length": str(length), "setting": name,
                       "recipe": recipe, "micro": str(largest) if largest else "OOM", "how": "planned", "speed": None,
                       "driver": None, "plan": plan.get("total_bytes", 0) / 1e9 if largest else "OOM",
                       "moments": parts.get("moments", 0) / 1e9, "saved": parts.get("saved", 0) / 1e9}
                if largest and self.is_measured(gpus, name, plan):
                    try:
                        figures = self.measure_model(model, gpus, recipe, largest, length)
                    except Broken as failure:
                        figures = self.broken(failure)
                    row.update(zip(("speed", "plan", "driver"), figures or ()), how="measured" if figures else "failed")
                    self.work.failed |= not figures and not self.dry
                yield row

    def models_table(self, models):
        rows = list(self.models_rows(models))
        if not self.dry:
            self.say(tables.models_table(self.paper, rows))

    def table7(self):
        self.say("## End to end (table 7)", texts.TABLE7)
        if self.real_text or self.gpus:
            self.say(texts.NARROW if self.real_text else "No speeds were measured; name token files with TRAIN.")
        self.models_table(PAPER_MODELS)
        self.say(texts.PLANNED)
        commands = [f"MODELS={model} GPUS={gpus} MICRO_BATCH={batch} LENGTH={length} STEP_TOKENS=32768 "
                    "scripts/measure.sh TOKENS bf16 fp8-linear coat"
                    for model, gpus, batch, length in PAPER_MODELS if gpus > len(self.gpus)]
        if commands:
            self.say(texts.ONE_BY_ONE % NARROW_TOKENS, ["```", *commands, "```"])

    def gpt2(self):
        self.say("## GPT-2 on one GPU", "The length is 1024. `coat` computes dgrad and wgrad of the output head in "
                 "FP8, `coat,head=fp8` also its logits. The paper has no GPT-2.")
        self.models_table(GPT2_MODELS)

    # --- all of it ----------------------------------------------------------------------------------------------------

    def list_jobs(self):
        """Yields (number of GPUs, function, argument...) of each measurement that the pieces need, the longest
        first."""
        for beta in BETAS if "table1" in self.pieces else []:
            yield 1, self.measure_states, beta
        for piece, models in (("gpt2", GPT2_MODELS), ("table7", PAPER_MODELS)):
            for model, gpus, batch, length in models if piece in self.pieces else []:
                for name, recipe, largest, plan in self.model_settings(model, gpus, batch, length):
                    if largest and self.is_measured(gpus, name, plan):
                        yield gpus, self.measure_model, model, gpus, recipe, largest, length
        for piece, bench in (("table6", BENCH_LAYER), ("figure4", ["bench_group_scaling"])):
            if piece in self.pieces:
                yield (1, self.bench, *bench)

    def use_all_gpus(self):
        """Runs all measurements that the pieces need. Measurements that need one GPU come first, one on each GPU at a
        time. Measurements that need several GPUs follow."""
        def do(function, *arguments):
            with contextlib.suppress(Broken):  # the piece that needs the measurement reports the failure
                function(*arguments)

        jobs = list(dict.fromkeys(self.list_jobs()))
        if len(jobs) < 2:
            return
        self.say(f"Measurements that need one GPU ran on {len(self.gpus)} GPUs at the same time; those that need "
                 "several GPUs followed, in as many groups as fit.")
        if any(str(word).startswith("llama") for job in jobs for word in job[2:3]):
            do(self.narrow_text)  # so that two threads do not write the file at the same time
        if "table1" in self.pieces:
            do(self.states_model)
        for count in sorted({job[0] for job in jobs}):
            groups = [",".join(self.gpus[k:k + count]) for k in range(0, len(self.gpus) - count + 1, count)]
            self.work.each(do, [job[1:] for job in jobs if job[0] == count], groups)

    def do_piece(self, piece):
        try:
            getattr(self, piece)()
        except Broken as failure:
            self.broken(failure)

    def do(self):
        if not self.dry:
            self.check_built()
        self.work.begin()
        try:
            if len(self.gpus) > 1 and not self.dry:
                self.use_all_gpus()
            for piece in self.pieces:
                self.do_piece(piece)
        except Failure:
            if not self.work.stopped:
                raise
        if self.work.stopped:
            return 143
        if not self.dry:
            write_file(self.out + "/reproduce.md", "\n".join(self.head() + self.page + [texts.FOOT]) + "\n")
            print(f"written: {self.out}/reproduce.md")
        return 1 if self.work.failed else 0


def library_versions(program):
    """Returns the versions of CUDA, cuBLAS and cuDNN that a program uses. The version of a library is read from its
    file name (libcudnn.so.9.19.0), else from its headers in ../include. ldd does not list cuDNN, because the program
    loads it at run time. cuDNN is therefore searched in the program's RPATH or RUNPATH, then in the system's
    folders."""
    folders = (re.search(r"PATH\).*\[(.*)\]|$", output_of("readelf", "-d", program))[1] or "").split(":")
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    versions = [re.search(r"release ([\d.]+)|$", output_of(nvcc, "--version"))[1] or "unknown"]
    for name, header, macro in (("libcublasLt", "cublas_api.h", "CUBLAS_VER"),
                                ("libcudnn", "cudnn_version.h", "CUDNN")):
        linked, cached = (re.search(name + r"\.so\S* (?:\(.*\) )?=> (\S+)|$", output_of(*command))[1]
                          for command in (["ldd", program], ["ldconfig", "-p"]))
        loaded = [path for folder in folders for path in glob.glob(f"{folder}/{name}.so.*")]
        path = os.path.realpath(linked or (loaded or [cached or ""])[0])
        version = path.rpartition(".so.")[2]
        parts = re.findall(rf"#define {macro}_(?:MAJOR|MINOR|PATCH|PATCHLEVEL)\s+(\d+)",
                           read_text(os.path.dirname(path) + "/../include/" + header))
        versions.append(version if "." in version else ".".join(parts) or "unknown")
    return "CUDA {}, cuBLAS {}, cuDNN {}".format(*versions)


def main(arguments):
    parser = lab.Parser("reproduce", __doc__)
    parser.add_argument("words", nargs="*", metavar="PIECE")
    options = parser.parse_intermixed_args(arguments)
    for word in options.words:
        if word not in PIECES + ["all"]:
            raise Failure(f"{word}: must be one of {', '.join(PIECES)}, all")
    words = [piece for word in options.words or ["all"] for piece in (PIECES if word == "all" else [word])]
    options.words = list(dict.fromkeys(words))
    return Reproduce(options).do()
