"""Functions that all experiments of scripts/lab.py use: they read settings from the environment, find GPUs, and run
several programs at a time, with the programs' results in one folder."""
import argparse
import contextlib
import fcntl
import glob
import os
import re
import shlex
import signal
import subprocess
import sys
import threading

from .results import Failure, read_text, write_file


def tell(text):
    sys.stderr.write(text + "\n")  # one call, so that lines of several threads do not mix


# --- the command line and the environment -----------------------------------------------------------------------------

class Parser(argparse.ArgumentParser):
    """Parses the command line of an experiment. about: text of --help; runs: True to add the flags --dry-run and
    --out."""

    def __init__(self, command, about, runs=True):
        super().__init__("scripts/lab.py " + command, description=about, allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)
        if not runs:
            return
        self.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
        self.add_argument("--out", default="runs/" + command, metavar="FOLDER", help="default: runs/" + command)

    def error(self, message):
        raise Failure(f"{message}; see {self.prog} --help")


def setting(name, default=""):
    return os.environ.get(name, "").strip() or default


def number(name, text, least=0):
    """Returns `text` as a whole number. Fails if `text` is not a whole number of at least `least` or has leading zeros.
    name: the setting, for the error."""
    if not re.fullmatch("0|[1-9][0-9]*", str(text)) or int(text) < least:
        raise Failure(f"{name}: must be a whole number of at least {least} (is {text})")
    return int(text)


def check_tokens(prefix, pattern):
    if not glob.glob(pattern):
        raise Failure(f"{prefix}no file matches {pattern}; make token files with data/prepare.py, or correct the "
                      "pattern")


def token_globs(words, work):
    """Returns [TRAIN_GLOB, VAL_GLOB] from the arguments `words`; without arguments, the files that prepare_text()
    makes."""
    if len(words) == 1:
        raise Failure(f"{words[0]}: name TRAIN_GLOB and VAL_GLOB, or neither")
    for pattern in [] if work.dry_run else words[:2]:
        check_tokens("", pattern)
    return words[:2] or [work.out + "/text_train.bin", work.out + "/text_val.bin"]


def command_line(command, names, arguments):
    """Returns a command line, with the environment variables `names` in front, for a page. Shortens absolute paths to
    their last part."""
    values = {name: re.sub("(^|[= ])/[^ ]*/(?=[^ ])", r"\1", " ".join(setting(name).split())) for name in names}
    return " ".join([f"{name}={shlex.quote(value)}" for name, value in values.items() if value] +
                    ["scripts/lab.py " + command] +
                    [shlex.quote(re.sub("(^|=)/.*/(?=.)", r"\1", word)) for word in arguments])


# --- GPUs -------------------------------------------------------------------------------------------------------------

def output_of(*command):
    """Returns the output of a command; "" if the command fails or does not exist."""
    with contextlib.suppress(OSError):
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else ""
    return ""


def query_gpus(fields, form="csv,noheader"):
    """Returns nvidia-smi's output for the given fields, a line per visible GPU."""
    visible = setting("CUDA_VISIBLE_DEVICES")
    options = ["-i", visible] if visible else []
    return output_of("nvidia-smi", *options, "--query-gpu=" + fields, "--format=" + form).splitlines()


def fp8_gpus():
    """Returns the ids of the visible GPUs; [] if the first GPU does not support FP8 (compute capability 8.9 or
    later)."""
    capability = query_gpus("compute_cap")
    if not capability or float(re.match("[0-9.]*", capability[0])[0] or 0) < 8.9:
        return []
    visible = setting("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else query_gpus("index")


def gpu_name():
    return (query_gpus("name") or ["CPU"])[0]


# --- programs ---------------------------------------------------------------------------------------------------------

BIN, BUILD = setting("BIN", "."), setting("BUILD", "build")
CPU_TRAINER, GPU_TRAINER = BIN + "/train_gpt2_fp8_cpu", BIN + "/train_gpt2_fp8"


def is_built(program):
    return os.access(program, os.X_OK)


def check_built(programs, needed_by=""):
    for program in programs:
        if not is_built(program):
            raise Failure(f"{needed_by}{program} is not built; run: make {re.sub('^[.]/', '', program)}")


def version_of(program):
    """Returns the version that pages show: VERSION if it is set, else git describe, else the program's --version."""
    return setting("VERSION") or (output_of("git", "describe", "--always", "--dirty") or
                                  output_of(program, "--version")).strip()


def recipe_flags(recipe):
    """Converts RECIPE[,FLAG=VALUE...] to a list of the trainer's flags."""
    name, *flags = recipe.split(",")
    return ["--recipe", name] + ["--" + flag for flag in flags]


def check_flags(what, trainer, flags):
    """Fails if --plan of the trainer refuses the flags. Uses the CPU trainer if the trainer is not built, as may be the
    case in a dry run. Checks nothing if neither is built. what: the setting, for the error."""
    planner = trainer if is_built(trainer) else CPU_TRAINER
    if is_built(planner):
        done = subprocess.run([planner, "--plan=json", *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True)
        if done.returncode:
            raise Failure(f"{what}: {error_in(done.stderr)}")


def error_in(output):
    """Returns the text after "error: " in a program's output; without this text, the last line of the output."""
    found = re.search(r"\berror: (.*)", output)
    return found[1] if found else (output.splitlines() or ["no output"])[-1]


# --- a folder at work -------------------------------------------------------------------------------------------------

class Work:
    """Runs several programs at a time, with their results in the folder `out`. A signal ends all programs.
    Thread-safe."""

    def __init__(self, out, dry_run):
        self.out, self.dry_run, self.stopped, self.failed, self.gpus = out, dry_run, False, False, fp8_gpus()
        self.running, self.guard, self.mine = set(), threading.RLock(), threading.local()

    def begin(self):
        """Locks the folder. Programs that run() starts inherit the lock, so it lasts until they end."""
        if self.dry_run:
            return
        os.makedirs(self.out, exist_ok=True)
        self.lock = open(self.out + "/.lock", "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(f"{self.out}: another process uses this folder; wait until it ends, or choose another --out")
        except OSError as error:
            raise Failure(f"{self.out}: cannot be locked ({error.strerror}); choose an --out on another file system")
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(name, self.stop)

    def stop(self, *_):
        with self.guard:
            self.stopped = True
            for process in self.running:
                self.end(process)

    @staticmethod
    def end(process):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)

    def run(self, log, command, until=None):
        """Runs a command, writes its output to the file `log`, and returns its exit code. A dry run only prints the
        command and returns 0. until: a function; when it returns true, the command gets SIGTERM."""
        if self.dry_run:
            print(shlex.join(command))
            return 0
        environment = {**os.environ, **getattr(self.mine, "environment", {})}
        with open(log, "w") as output, self.guard:
            if self.stopped:
                return 1
            try:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                           env=environment, start_new_session=True, pass_fds=[self.lock.fileno()])
            except OSError as error:
                raise Failure(f"{command[0]} cannot be started: {error.strerror}")
            self.running.add(process)
            if self.stopped:  # a signal came while the process was started
                self.end(process)
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1 if until else None)
            if until and until():
                self.end(process)
                until = None
        with self.guard:
            self.running.discard(process)
        return process.returncode if process.returncode >= 0 else 128 - process.returncode

    @staticmethod
    def failure(what, status, log):
        """Returns a Failure with the exit status of a program and the error in its output. what: the program, for the
        error."""
        return Failure(f"{what}, status {status}: {error_in(read_text(log))} (see {log})")

    def report(self, failure):
        self.failed = True
        if str(failure) and not self.stopped:
            tell(f"failed: {failure}")

    def places(self, jobs):
        """Returns the value of CUDA_VISIBLE_DEVICES for each of `jobs` threads. With several GPUs, each thread gets one
        GPU; otherwise None, which leaves the variable unchanged."""
        return [self.gpus[k % len(self.gpus)] if len(self.gpus) > 1 else None for k in range(jobs)]

    def each(self, function, items, places):
        """Calls function(*item) for each item, in one thread per element of `places`. Reports a failure and continues
        with the other items. places: each thread's CUDA_VISIBLE_DEVICES; None leaves the variable unchanged."""
        rest = iter(items)

        def work(place):
            self.mine.environment = {"CUDA_VISIBLE_DEVICES": place} if place else {}
            while not self.stopped:
                with self.guard:
                    item = next(rest, None)
                if item is None:
                    return
                try:
                    function(*item)
                except (Failure, OSError) as failure:
                    self.report(failure)
                except Exception as error:
                    self.report(f"internal error: {error!r}")

        threads = [threading.Thread(target=work, args=(place,)) for place in places[:1 if self.dry_run else None]]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.5)  # timeout, so that Python handles signals
        if self.stopped:
            raise Failure("stopped; run the same command again to continue")

    def prepare_text(self):
        """Makes OUT/text_train.bin and OUT/text_val.bin for the byte-level model from the text that the environment
        variable TEXT names, unless text_val.bin exists. Fails if the existing files were made from another text."""
        log, text, source = self.out + "/text.log", self.out + "/text", setting("TEXT", "--headers")
        if not os.path.exists(text + "_val.bin"):
            status = self.run(log, [BUILD + "/prepare_bytes", source, "--overwrite", "--out", text])
            if status:
                raise self.failure("text", status, log)
            write_file(text + ".source", source)
        made_from = read_text(text + ".source") or source
        if made_from != source:
            raise Failure(f"TEXT: {text}_train.bin was made from {made_from}, not from {source}; choose another --out")
