#!/usr/bin/env bash
# What a run shows: the page it begins with, and the quiet, JSON and terminal modes. On the CPU's program.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh

# says NAME PATTERN FILE: a line of the file, as wrapped at 80 columns, matches
says() {
    if grep -qE -- "$2" "$3"; then echo "ok - $1"; else
        printf 'not ok - %s\n    no /%s/ in:\n' "$1" "$2"
        sed 's/^/    /' "$3"
        failures=1
    fi
}
# is NAME GOT WANTED
is() {
    if [ "$2" = "$3" ]; then echo "ok - $1"; else
        printf 'not ok - %s\n    got: %s\n    wanted: %s\n' "$1" "$2" "$3"
        failures=1
    fi
}

text "$folder/texts" && "$build"/prepare_bytes --out "$folder/t" "$folder/texts" >/dev/null || exit 1
run=("$program" --tokenizer bytes --layers 2 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --batch-tokens 256
    --train "$folder/t_train.bin" --val "$folder/t_val.bin" --val-batches 1 --val-every 2 --steps 4 --warmup 2 --lr 3e-3 --sample-tokens 0)

"${run[@]}" --recipe coat --schedule cosine --lr 6e-4 --lr-final 0.1 --out "$folder/run" --save-every 2 --keep 1 >"$folder/page" 2>"$folder/errors"
is "nothing on standard error" "$(cat "$folder/errors")" ""
says "the device" '^device      .*2? threads?' "$folder/page"
is "a peak that is not known is said to be so" "$(tr '\n' ' ' <"$folder/page" | tr -s ' ' | grep -c 'peak unknown, so MFU is not shown model ')" 1
says "the model" '^model       0\.1 M parameters: 2 layers, 2 heads, 32 channels' "$folder/page"
says "the recipe" '^recipe      coat: linear fp8 \(forward: 1 block bf16\), head bf16' "$folder/page"
says "the data" '^train       1 shard, [0-9,]+ tokens, uint16$' "$folder/page"
says "the validation" '^validation  1 shard, [0-9,]+ tokens, uint16, the first 128 of them every 2 steps$' "$folder/page"
says "the batch" '^batch       4 x 32 tokens, 2 micro-batches per step: 256 tokens per step$' "$folder/page"
says "the schedule" '^schedule    cosine: lr 0.0006 after 2 steps of warm-up, then to 6e-05; weight' "$folder/page"
says "the length" '^length      4 steps, 1,024 tokens, 0\.[0-9]+ epochs$' "$folder/page"
says "the memory plan" '^  saved +[0-9.]+ MB +[0-9.]+ %$' "$folder/page"
says "and its total" '^  total +[0-9.]+ MB +100\.0 %$' "$folder/page"
says "a line per step with the time left" '^step 3/4 \| loss .* tok/s \| [0-9]+:[0-9]{2}:[0-9]{2} left$' "$folder/page"
is "no line of the page is wider than 80 columns" "$(sed '/^step 1/,$d' "$folder/page" | grep -v "$folder" | awk 'length > 80')" ""
is "no colours in a file" "$(grep -c $'\033' "$folder/page")" 0

"${run[@]}" --out "$folder/run" --resume --steps 6 --recipe coat >"$folder/resumed" 2>/dev/null
says "a resumed run says what is done" '^length      6 steps, 1,536 tokens, .* epochs; 4 steps are done$' "$folder/resumed"

"${run[@]}" --out "$folder/run" --resume --steps 8 --batch-tokens 512 --recipe coat >"$folder/resumed" 2>/dev/null
says "and counts what is done as it was" '^length      8 steps, 2,560 tokens, .* epochs; 6 steps are done$' "$folder/resumed"
is "epochs too" "$(sed -n 's/^length .* \([0-9.]*\) epochs.*/\1/p' "$folder/resumed")" "$(awk -v n=$((($(od -An -t d4 -j 8 -N 4 "$folder/t_train.bin") - 1) / 32)) 'BEGIN { printf "%.3g", 80 / n }')"
"${run[@]}" --out "$folder/run" --resume --steps 10 --batch-tokens 512 --seq-len 64 --recipe coat >"$folder/resumed" 2>/dev/null
says "with another --seq-len too" '^length      10 steps, 3,584 tokens, .* epochs; 8 steps are done$' "$folder/resumed"

"${run[@]}" --out "$folder/seldom" --steps 9 --val-every 4 --log-every 100 >"$folder/thin" 2>/dev/null
is "--log-every: the first, the last, and those that are validated" "$(grep -oE '^(step [0-9]|val loss)' "$folder/thin" | tr '\n' ' ')" "step 1 step 4 val loss step 8 val loss step 9 val loss "
is "and the log has all" "$(grep -c '"loss"' "$folder/seldom/log.jsonl")" 9
"${run[@]}" --val-every 0 --steps 9 --log-every 3 --sample-tokens 3 --sample-every 5 >"$folder/thin" 2>/dev/null
is "every third, and those that are sampled" "$(grep -oE '^step [0-9]' "$folder/thin" | tr -dc '0-9')" 13569
"${run[@]}" --val-every 0 --steps 60 --log-every 100 --lr 1000 --weight-decay 100 --max-skipped 100 >"$folder/thin" 2>/dev/null
says "some updates are skipped then" ', [1-9][0-9]* updates skipped,' "$folder/thin"
is "and are all shown" "$(grep -cE '^step +[0-9]+/60 .* update skipped' "$folder/thin")" "$(sed -n 's/.*, \([0-9]*\) updates skipped,.*/\1/p' "$folder/thin")"
"${run[@]}" --log-every 0 >"$folder/thin" 2>&1
is "not every 0: 1" "$? $(cat "$folder/thin")" "1 error: --log-every 0: must be between 1 and 9000000000000000"

# of several sets each has its share and its epochs: 20 steps of 8 sequences of 32 tokens, of a total that is on the page
head -c 3000 "$folder/texts/001.txt" >"$folder/small.txt" && "$build"/prepare_bytes --out "$folder/small" "$folder/small.txt" >/dev/null || exit 1
"${run[@]}" --train-weight 3 --train "$folder/small_train.bin" --train-weight 1 --steps 20 >"$folder/sets" 2>/dev/null
page=$(sed '/^step 1/,$d' "$folder/sets" | tr '\n' ' ' | tr -s ' ')
small=$(($(od -An -t d4 -j 8 -N 4 "$folder/small_train.bin")))
[[ $page == *"train 2 sets of 3 : 1, 2 shards, "*" 75 %: $folder/t_train.bin, "*" tokens, "*" epochs 25 %: $folder/small_train.bin, "*" tokens, "*" epochs validation "* ]]
is "the sets of the data, their shares and epochs" $? 0
epochs=$(sed 's|.*/small_train.bin, [0-9,]* tokens, \([0-9.]*\) epochs.*|\1|' <<<"$page")
is "epochs are of a set's own sequences" "$(awk -v e="$epochs" -v n=$(((small - 1) / 32)) 'BEGIN { print (e * n > 30 && e * n < 50) }')" 1
says "the length has none of them together" '^length      20 steps, 5,120 tokens$' "$folder/sets"
says "at the end, what was read of each" "^$folder/t_train.bin: 1[0-9][0-9] sequences, [0-9]+ tokens, 0\.[0-9]+ epochs$" "$folder/sets"

"${run[@]}" --quiet >"$folder/quiet" 2>&1
is "--quiet leaves the last line" "$(grep -cE '^done: 4 of 4 steps' "$folder/quiet") of $(wc -l <"$folder/quiet")" "1 of 1"
"${run[@]}" --json --out "$folder/json" >"$folder/lines" 2>"$folder/errors"
is "--json prints what the log holds" "$(cat "$folder/lines")" "$(cat "$folder/json/log.jsonl")"
says "and the page to standard error" '^device ' "$folder/errors"
"${run[@]}" --json --quiet >"$folder/lines" 2>"$folder/errors"
is "--json --quiet is silent there" "$(cat "$folder/errors")" ""

# `make run`, with what is built here, fits a screen
mkdir -p "$folder/tree/scripts" "$folder/bin"
cp scripts/run.sh scripts/gpu.sh "$folder/tree/scripts"
printf '#!/bin/sh\n' | tee "$folder/tree/scripts/setup.sh" >"$folder/bin/make"
chmod +x "$folder/tree/scripts/setup.sh" "$folder/bin/make"
ln -s "$(realpath "$build")" "$folder/tree/build"
ln -s "$program" "$folder/tree/train_gpt2_fp8_cpu"
PATH=$folder/bin:$PATH STEPS=60 "$folder/tree/scripts/run.sh" >"$folder/demo" 2>&1
is "make run ends well" "$? $(grep -c '^== files' "$folder/demo")" "0 1"
is "and shows every third of 60 steps" "$(grep -oE '^step +[0-9]+' "$folder/demo" | tr -dc '0-9\n' | paste -sd ' ')" "1 $(seq -s ' ' 3 3 60)"
is "though its log has all" "$(grep -c '"loss"' "$folder/tree/runs/demo/log.jsonl")" 60

# a schedule that does not let the rate fall
for schedule in cosine linear wsd; do
    "${run[@]}" --lr 6e-4 --schedule $schedule >/dev/null 2>"$folder/errors"
    is "$schedule with --lr-final 1 is noted" "$(cat "$folder/errors")" "note: --schedule $schedule: --lr-final 1 keeps the rate constant; 0 lets it fall"
done
"${run[@]}" --warmup 0 >/dev/null 2>"$folder/errors"
is "so it is without flags, once" "$(grep -c '^note: --schedule cosine: --lr-final 1 keeps' "$folder/errors") of $(wc -l <"$folder/errors")" "1 of 1"
for flag in "--schedule constant" "--lr-final 0.5" "--quiet"; do
    # shellcheck disable=SC2086
    "${run[@]}" $flag >/dev/null 2>"$folder/errors"
    is "with $flag it is not" "$(cat "$folder/errors")" ""
done

# in a terminal of 80 columns: colours, and no line that wraps; one that is made narrower on the way, with the signal
# that goes with it, once the first step has been shown
terminal() { # COLUMNS[,THEN] COMMAND...: what the command shows there
    python3 -c '
import fcntl, os, pty, signal, struct, sys, termios
widths = sys.argv[1].split(",")
def resize(fd):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, int(widths.pop(0)), 0, 0))
pid, fd = pty.fork()
if pid == 0:
    resize(1)
    os.execvp(sys.argv[2], sys.argv[2:])
widths.pop(0)
try:
    while True:
        text = os.read(fd, 65536)
        sys.stdout.buffer.write(text)
        if widths and b" loss " in text:
            resize(fd)
            os.kill(pid, getattr(signal, os.environ.get("SENT", "SIGWINCH")))
except OSError:
    pass
os.waitpid(pid, 0)' "$@" | tr -d '\r'
}
if python3 -c 'import pty; pty.openpty()' 2>/dev/null; then
    TERM=xterm terminal 80 env -u NO_COLOR "${run[@]}" >"$folder/narrow"
    says "colours on a terminal" $'^3/4 loss \033\\[1m[0-9.]+\033\\[0m norm' "$folder/narrow"
    is "nothing wraps at 80 columns" "$(sed 's/\x1b\[[0-9]*m//g' "$folder/narrow" | awk 'length > 80')" ""
    TERM=xterm NO_COLOR=1 terminal 80 "${run[@]}" >"$folder/plain"
    is "none with NO_COLOR" "$(grep -c $'\033' "$folder/plain")" 0
    TERM=xterm NO_COLOR=1 terminal 60 "${run[@]}" >"$folder/narrower"
    is "nor at 60" "$(grep -E '^[0-9]/4' "$folder/narrower" | awk 'length > 60')" ""
    says "with as much as fits there" '^4/4 loss [0-9.]+ norm [0-9.]+ .*tok/s [0-9:]+( left)?$' "$folder/narrower"
    is "the page, too, and the last line" "$(tr -d '\r' <"$folder/narrower" | grep -v "^note: \|$folder" | awk 'length > 60')" ""
    says "which is short then" '^done: 4/4, loss [0-9.]+, val loss [0-9.]+, 0:00:0[0-9]$' "$folder/narrower"
    says "the page has all its words" '^schedule    constant: lr 0.003 ' "$folder/narrower"
    is "and is as wide as ever at 80" "$(grep -E '^(model|recipe|schedule)' "$folder/plain")" "$("${run[@]}" --steps 1 2>/dev/null | grep -E '^(model|recipe|schedule)')"
    SENT=SIGTERM NO_COLOR=1 terminal 60,60 "${run[@]}" --steps 100000 >"$folder/ended"
    is "what is said of a signal breaks at blanks" "$(grep -A 1 '^asked to end' "$folder/ended")" "asked to end: saving what is done; once more ends the
process at once"
    is "and so is how the run ended" "$(grep -A 1 '^ended by' "$folder/ended" | sed 's/step [0-9]*/step N/')" "ended by SIGTERM after step N of 100000: nothing is saved
without --out"
    is "in 60 columns" "$(awk 'length > 60' "$folder/ended" | grep -v "$folder")" ""
    terminal 60 "$program" --help >"$folder/help"
    is "the help fits but for commands and long names" "$(awk 'length > 60' "$folder/help" | grep -vE '^ +(\./|--)|prepare_bytes')" ""
    is "with the same words" "$(tr -s ' \n' '  ' <"$folder/help")" "$("$program" --help | tr -s ' \n' '  ')"
    plan=("$program" --plan --model gpt2-xl --recipe fp8-linear --gpus 8 --zero 3 --memory-limit 80GB)
    terminal 60 "${plan[@]}" >"$folder/plan"
    is "a plan fits" "$(awk 'length > 60' "$folder/plan")" ""
    is "with the same words as elsewhere" "$(tr -s ' \n' '  ' <"$folder/plan")" "$("${plan[@]}" | tr -s ' \n' '  ')"
    is "in the same lines at 80" "$(terminal 80 "${plan[@]}")" "$("${plan[@]}")"
    terminal 60 "$program" --plan --prompt a --micro-batch 4 --batch-tokens 8192 --val x.bin >"$folder/notes"
    is "a note is as wide as a terminal" "$(head -n 2 "$folder/notes")" "note: --batch-tokens, --micro-batch, --val: without effect,
      as nothing is trained or evaluated"
    TERM=xterm NO_COLOR=1 terminal 80,60 "${run[@]}" --steps 400 --val-every 0 >"$folder/resized"
    is "one that becomes narrower has all steps" "$(grep -cE '^ *[0-9]+/400 loss' "$folder/resized")" 400
    is "wide before" "$(grep -E '^ +1/400' "$folder/resized" | awk 'length > 60 && length <= 80' | wc -l)" 1
    is "narrow after" "$(grep -E '^ *(39.|400)/400' "$folder/resized" | awk 'length > 60 || length < 40')" ""
    TERM=xterm NO_COLOR=1 terminal 120 "${run[@]}" >"$folder/wide"
    says "words where there is room" '^step 3/4 \| loss .* left$' "$folder/wide"
    sample=("$program" --model "$folder"/json/step-00000004 --tokenizer bytes --prompt x --sample-tokens 200 --temperature 5 --quiet)
    steering() { LC_ALL=C tr -dc '\000-\010\013-\037\177' | wc -c; } # how many bytes would move a cursor, ring a bell ...
    "${sample[@]}" >"$folder/sampled"
    NO_COLOR=1 terminal 80 "${sample[@]}" >"$folder/shown"
    is "a sample has no control bytes on a terminal" "$(steering <"$folder/shown")" 0
    is "but is there" "$([ "$(tr -dc '?' <"$folder/shown" | wc -c)" -gt 5 ] && echo yes)" yes
    is "and is raw elsewhere" "$([ "$(steering <"$folder/sampled")" -gt 5 ] && echo yes)" yes
else
    echo "skip - terminals: no python3, or no pseudo-terminals"
fi
"$program" --plan --model qwen3-0.6b >"$folder/page"
says "heads that share keys, and their width" '^model       28 layers, 16 heads of 128 \(8 of keys and values\), 1024 channels' "$folder/page"
"$program" --plan --gpus 2 --zero 3 >"$folder/page"
says "what a plan of several GPUs leaves out" "^  outside, about +1\.70 GB  CUDA's context and NCCL\$" "$folder/page"
"$program" --plan --device cpu >"$folder/page"
is "a CPU's has nothing beside it" "$(grep -c beside "$folder/page")" 0
# --- a noun behind 1 is no plural
"$build"/prepare_bytes --out "$folder/single" README.md >"$folder/page"
says "1 file" ' from 1 file \(its end held out\)' "$folder/page"
one=("$program" --tokenizer bytes --layers 1 --heads 1 --channels 16 --seq-len 16 --micro-batch 1 --schedule constant --sample-tokens 0 --train)
"${one[@]}" "$folder/single_train.bin" --positions 16 --val "$folder/single_val.bin" --val-every 1 --val-batches 1 --save-every 1 --warmup 1 --steps 1 \
    --out "$folder/single" >>"$folder/page" 2>&1
says "1 layer" '^model .* 1 layer, 1 head, 16 channels, 16 positions' "$folder/page"
says "every step" '^validation .* every step' "$folder/page"
says "1 step" '^length  *1 step, 16 tokens, ' "$folder/page"
says "after 1 step" '^val loss [0-9.]+ after 1 step$' "$folder/page"
says "1 of 1 step" '^done: 1 of 1 step, ' "$folder/page"
"$program" --plan --layers 1 --heads 1 --channels 64 --steps 1 >>"$folder/page"
says "the plan, too" '^model +1 layer, 1 head, 64 channels: ' "$folder/page"
is "no plural" "$(grep -aE '(^|[^-0-9.,])1 [a-z]+s\b' "$folder/page" | grep -v '1 process')" ""
# refused NAME CODE PATTERN FLAGS...
refused() {
    "${one[@]}" "${@:4}" >/dev/null 2>"$folder/said"
    is "$1: exit code" $? "$2"
    says "$1" "$3" "$folder/said"
}
refused "1 position" 1 '^error: --seq-len 16: the model has 1 position; use --seq-len 1 or a larger --positions$' "$folder/single_train.bin" --positions 1
head -c 1028 "$folder/single_train.bin" >"$folder/odd.bin" # two tokens, and the header says 1
printf '\1\0\0\0' | dd of="$folder/odd.bin" bs=1 seek=8 conv=notrunc status=none
refused "1 token" 2 '^error: .*odd.bin is damaged: 1028 bytes, but its header says 1 token of 2 bytes: ' "$folder/odd.bin"
head -c 1026 "$folder/odd.bin" >"$folder/short.bin"
refused "1 token, again" 2 '^error: .*short.bin: 1 token makes 0 sequences of 16 \+ 1 tokens, .* \(1 row on 1 process\)' "$folder/short.bin"
refused "1 update" 4 '^error: training diverged: 1 update in a row had a non-finite loss or gradient; ' "$folder/single_train.bin" --lr 1000 --weight-decay 1000 --steps 40 --max-skipped 1 --recipe bf16
exit $failures
