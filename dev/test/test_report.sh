#!/usr/bin/env bash
# Tests a run's output: the report at the start, and the quiet, JSON and terminal modes. Uses the CPU program.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh

# says NAME PATTERN FILE: checks that a line of FILE, whose text is wrapped at 80 columns, matches
says() { has "$1" "$(tr -d '\0' <"$3")" "$2"; }

byte_data
run=("$program" --tokenizer bytes --layers 2 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --batch-tokens 256
    --train "$data" --val "$val" --val-batches 1 --val-every 2 --steps 4 --warmup 2 --lr 3e-3 --sample-tokens 0)

"${run[@]}" --recipe coat --schedule cosine --lr 6e-4 --lr-final 0.1 --out "$folder/run" --save-every 2 --keep 1 >"$folder/page" 2>"$folder/errors"
empty "a run prints nothing to stderr" "$(cat "$folder/errors")"
says "the report shows the device" '^device      .*[0-9]+ threads?' "$folder/page"
is "the report says that the device's peak FLOP/s are unknown" "$(tr '\n' ' ' <"$folder/page" | tr -s ' ' | grep -c 'peak unknown, so no percentage of it is shown model ')" 1
says "the report shows the model" '^model       0\.1 M parameters: 2 layers, 2 heads, 32 channels' "$folder/page"
says "the report shows the recipe" '^recipe      coat: linear fp8 \(forward: 1 block bf16\), head fp8-backward' "$folder/page"
says "the report shows the data" '^train       1 shard, [0-9,]+ tokens, uint16$' "$folder/page"
says "the report shows the validation" '^validation  1 shard, [0-9,]+ tokens, uint16, the first 128 of them every 2 steps$' "$folder/page"
says "the report shows the batch" '^batch       4 x 32 tokens, 2 micro-batches per step: 256 tokens per step$' "$folder/page"
says "the report shows the schedule" '^schedule    cosine: lr 0.0006 after 2 steps of warm-up, then to 6e-05; weight' "$folder/page"
says "the report shows the length" '^length      4 steps, 1,024 tokens, 0\.[0-9]+ epochs$' "$folder/page"
says "the report shows the memory plan" '^  saved +[0-9.]+ MB +[0-9.]+ %$' "$folder/page"
says "the report shows the memory plan's total" '^  total +[0-9.]+ MB +100\.0 %$' "$folder/page"
"${run[@]}" --recipe coat --optimizer muon --moments-fp32 qkvw --steps 1 >"$folder/muon" 2>&1
says "the report shows the format of Muon's momentum, apart from the matrices of --moments-fp32" '^optimizer   Muon for the blocks. matrices: momentum 0\.95 in i8' "$folder/muon"
says "a line per step shows the time left" '^step 3/4 \| loss .* tok/s \| [0-9]+:[0-9]{2}:[0-9]{2} left$' "$folder/page"
empty "the report fits 80 columns" "$(sed '/^step 1/,$d' "$folder/page" | grep -v "$folder" | awk 'length > 80')"
is "output to a file has no colours" "$(grep -c $'\033' "$folder/page")" 0

"${run[@]}" --out "$folder/run" --resume --steps 6 --recipe coat >"$folder/resumed" 2>/dev/null
says "a resumed run reports the finished steps" '^length      6 steps, 1,536 tokens, .* epochs; 4 steps are done$' "$folder/resumed"

"${run[@]}" --out "$folder/run" --resume --steps 8 --batch-tokens 512 --recipe coat >"$folder/resumed" 2>/dev/null
says "a run resumed with another batch counts the finished steps unchanged" '^length      8 steps, 2,560 tokens, .* epochs; 6 steps are done$' "$folder/resumed"
is "a run resumed with another batch counts the finished epochs" "$(sed -n 's/^length .* \([0-9.]*\) epochs.*/\1/p' "$folder/resumed")" "$(awk -v n=$((($(od -An -t d4 -j 8 -N 4 "$data") - 1) / 32)) 'BEGIN { printf "%.3g", 80 / n }')"
"${run[@]}" --out "$folder/run" --resume --steps 10 --batch-tokens 512 --seq-len 64 --recipe coat >"$folder/resumed" 2>/dev/null
says "a run resumed with another --seq-len counts the finished steps" '^length      10 steps, 3,584 tokens, .* epochs; 8 steps are done$' "$folder/resumed"

"${run[@]}" --out "$folder/seldom" --steps 9 --val-every 4 --log-every 100 >"$folder/thin" 2>/dev/null
is "--log-every shows the first, the last and the validated steps" "$(grep -oE '^(step [0-9]|val loss)' "$folder/thin" | tr '\n' ' ')" "step 1 step 4 val loss step 8 val loss step 9 val loss "
is "--log-every: log.jsonl has all steps" "$(grep -c '"loss"' "$folder/seldom/log.jsonl")" 9
"${run[@]}" --val-every 0 --steps 9 --log-every 3 --sample-tokens 3 --sample-every 5 >"$folder/thin" 2>/dev/null
is "--log-every 3 shows every third step and the steps with samples" "$(grep -oE '^step [0-9]' "$folder/thin" | tr -dc '0-9')" 13569
"${run[@]}" --val-every 0 --steps 60 --log-every 100 --lr 1000 --weight-decay 100 --max-skipped 100 >"$folder/thin" 2>/dev/null
says "the last line counts skipped updates" ', [1-9][0-9]* updates skipped,' "$folder/thin"
is "--log-every shows all steps with skipped updates" "$(grep -cE '^step +[0-9]+/60 .* update skipped' "$folder/thin")" "$(sed -n 's/.*, \([0-9]*\) updates skipped,.*/\1/p' "$folder/thin")"
"${run[@]}" --log-every 0 >"$folder/thin" 2>&1
is "--log-every 0 is refused" "$? $(cat "$folder/thin")" "1 error: --log-every 0: must be between 1 and 9000000000000000"

# 20 steps of 8 sequences of 32 tokens: the report has the weight and the epochs of each data set, and the total length
head -c 3000 "$folder/texts/001.txt" >"$folder/small.txt" && "$build"/prepare_bytes --out "$folder/small" "$folder/small.txt" >/dev/null || exit 1
"${run[@]}" --train-weight 3 --train "$folder/small_train.bin" --train-weight 1 --steps 20 >"$folder/sets" 2>/dev/null
page=$(sed '/^step 1/,$d' "$folder/sets" | tr '\n' ' ' | tr -s ' ')
small=$(($(od -An -t d4 -j 8 -N 4 "$folder/small_train.bin")))
[[ $page == *"train 2 sets of 3 : 1, 2 shards, "*" 75 %: $data, "*" tokens, "*" epochs 25 %: $folder/small_train.bin, "*" tokens, "*" epochs validation "* ]]
is "the report shows the data sets with weights and epochs" $? 0
epochs=$(sed 's|.*/small_train.bin, [0-9,]* tokens, \([0-9.]*\) epochs.*|\1|' <<<"$page")
is "the epochs of a data set are those of the sequences read from it" "$(awk -v e="$epochs" -v n=$(((small - 1) / 32)) 'BEGIN { print (e * n > 30 && e * n < 50) }')" 1
says "the length of a run on data sets has no epochs" '^length      20 steps, 5,120 tokens$' "$folder/sets"
says "the end of a run shows what was read of each data set" "^$data: 1[0-9][0-9] sequences, [0-9]+ tokens, 0\.[0-9]+ epochs$" "$folder/sets"

"${run[@]}" --quiet >"$folder/quiet" 2>&1
is "--quiet prints only the last line" "$(grep -cE '^done: 4 of 4 steps' "$folder/quiet") of $(wc -l <"$folder/quiet")" "1 of 1"
"${run[@]}" --json --out "$folder/json" >"$folder/lines" 2>"$folder/errors"
is "--json prints the lines of log.jsonl" "$(cat "$folder/lines")" "$(cat "$folder/json/log.jsonl")"
says "--json prints the report to stderr" '^device ' "$folder/errors"
"${run[@]}" --json --quiet >"$folder/lines" 2>"$folder/errors"
empty "--json --quiet prints nothing to stderr" "$(cat "$folder/errors")"

# `make run`, with the programs of this build, prints few enough lines for a screen
mkdir -p "$folder/tree/scripts" "$folder/bin"
cp scripts/run.sh scripts/gpu.sh "$folder/tree/scripts"
printf '#!/bin/sh\n' | tee "$folder/tree/scripts/setup.sh" >"$folder/bin/make"
chmod +x "$folder/tree/scripts/setup.sh" "$folder/bin/make"
ln -s "$(realpath "$build")" "$folder/tree/build"
ln -s "$program" "$folder/tree/train_gpt2_fp8_cpu"
PATH=$folder/bin:$PATH STEPS=60 "$folder/tree/scripts/run.sh" >"$folder/demo" 2>&1
is "make run succeeds" "$? $(grep -c '^== files' "$folder/demo")" "0 1"
is "make run shows every third of 60 steps" "$(grep -oE '^step +[0-9]+' "$folder/demo" | tr -dc '0-9\n' | paste -sd ' ')" "1 $(seq -s ' ' 3 3 60)"
is "make run refuses STEPS=1k" "$(STEPS=1k scripts/run.sh 2>&1)" "error: STEPS: must be a whole number of at least 1 (is 1k)"
is "make run logs all steps" "$(grep -c '"loss"' "$folder/tree/runs/demo/log.jsonl")" 60

# schedules that --lr-final 1 makes constant
for schedule in cosine linear wsd; do
    "${run[@]}" --lr 6e-4 --schedule $schedule >/dev/null 2>"$folder/errors"
    is "$schedule with --lr-final 1 prints a note" "$(cat "$folder/errors")" "note: --schedule $schedule: --lr-final 1 keeps the rate constant; use --lr-final 0 to let it fall"
done
"${run[@]}" --warmup 0 >/dev/null 2>"$folder/errors"
is "the default schedule with --lr-final 1 prints one note" "$(grep -c '^note: --schedule cosine: --lr-final 1 keeps' "$folder/errors") of $(wc -l <"$folder/errors")" "1 of 1"
for flag in "--schedule constant" "--lr-final 0.5" "--quiet"; do
    # shellcheck disable=SC2086
    "${run[@]}" $flag >/dev/null 2>"$folder/errors"
    empty "$flag prints no note about --lr-final 1" "$(cat "$folder/errors")"
done

# terminal COLUMNS[,THEN] COMMAND...: prints the command's output in a terminal of this width. With THEN, after the
# first step was shown, sets the width to THEN and sends the command the signal $SENT (default: SIGWINCH).
terminal() {
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
    says "a terminal gets colours" $'^3/4 loss \033\\[1m[0-9.]+\033\\[0m norm' "$folder/narrow"
    empty "output fits a terminal of 80 columns" "$(sed 's/\x1b\[[0-9]*m//g' "$folder/narrow" | awk 'length > 80')"
    TERM=xterm NO_COLOR=1 terminal 80 "${run[@]}" >"$folder/plain"
    is "NO_COLOR switches colours off" "$(grep -c $'\033' "$folder/plain")" 0
    TERM=xterm NO_COLOR=1 terminal 60 "${run[@]}" >"$folder/narrower"
    empty "step lines fit a terminal of 60 columns" "$(grep -E '^[0-9]/4' "$folder/narrower" | awk 'length > 60')"
    says "step lines of 60 columns show loss, norm and tok/s" '^4/4 loss [0-9.]+ norm [0-9.]+ .*tok/s( [0-9]+:[0-9]{2}:[0-9]{2})?$' "$folder/narrower"
    empty "the report and the last line fit 60 columns" "$(tr -d '\r' <"$folder/narrower" | grep -v "^note: \|$folder" | awk 'length > 60')"
    says "the last line is shortened at 60 columns" '^done: 4/4, loss [0-9.]+, val loss [0-9.]+, 0:00:0[0-9]$' "$folder/narrower"
    says "the report at 60 columns is complete" '^schedule    constant: lr 0.003 ' "$folder/narrower"
    is "the report at 80 columns equals that in a file" "$(grep -E '^(model|recipe|schedule)' "$folder/plain")" "$("${run[@]}" --steps 1 2>/dev/null | grep -E '^(model|recipe|schedule)')"
    SENT=SIGTERM NO_COLOR=1 terminal 60,60 "${run[@]}" --steps 100000 >"$folder/ended"
    is "messages about a signal wrap at spaces" "$(grep -A 1 '^stopping' "$folder/ended")" "stopping after the current micro-batch; a second signal ends
the process at once, without saving"
    is "the line about the end of the run wraps at spaces" "$(grep -A 1 '^ended by' "$folder/ended" | sed 's/step [0-9]*/step N/')" "ended by SIGTERM after step N of 100000: nothing is saved
without --out"
    empty "lines about a signal fit 60 columns" "$(awk 'length > 60' "$folder/ended" | grep -v "$folder")"
    terminal 60 "$program" --help >"$folder/help"
    empty "--help fits 60 columns except commands and long names" "$(awk 'length > 60' "$folder/help" | grep -vE '^ +(\./|--)|prepare_bytes')"
    is "--help at 60 columns has the same words" "$(tr -s ' \n' '  ' <"$folder/help")" "$("$program" --help | tr -s ' \n' '  ')"
    plan=("$program" --plan --model gpt2-xl --recipe fp8-linear --gpus 8 --zero 3 --memory-limit 80GB)
    terminal 60 "${plan[@]}" >"$folder/plan"
    empty "--plan fits 60 columns" "$(awk 'length > 60' "$folder/plan")"
    is "--plan at 60 columns has the same words" "$(tr -s ' \n' '  ' <"$folder/plan")" "$("${plan[@]}" | tr -s ' \n' '  ')"
    is "--plan at 80 columns equals that in a file" "$(terminal 80 "${plan[@]}")" "$("${plan[@]}")"
    terminal 60 "$program" --plan --prompt a --micro-batch 4 --batch-tokens 8192 --val x.bin >"$folder/notes"
    is "a note wraps at the terminal's width" "$(head -n 2 "$folder/notes")" "note: --batch-tokens, --micro-batch, --val: without effect,
      as nothing is trained or evaluated"
    TERM=xterm NO_COLOR=1 terminal 80,60 "${run[@]}" --steps 400 --val-every 0 >"$folder/resized"
    is "a terminal that becomes narrower shows all steps" "$(grep -cE '^ *[0-9]+/400 loss' "$folder/resized")" 400
    is "step lines are wide before a terminal becomes narrower" "$(grep -E '^ +1/400' "$folder/resized" | awk 'length > 60 && length <= 80' | wc -l)" 1
    empty "step lines are narrow after a terminal becomes narrower" "$(grep -E '^ *(39.|400)/400' "$folder/resized" | awk 'length > 60 || length < 40')"
    TERM=xterm NO_COLOR=1 terminal 120 "${run[@]}" >"$folder/wide"
    says "a wide terminal shows full words" '^step 3/4 \| loss .* left$' "$folder/wide"
    sample=("$program" --model "$folder"/json/step-00000004 --tokenizer bytes --prompt x --sample-tokens 200 --temperature 5 --quiet)
    steering() { LC_ALL=C tr -dc '\000-\010\013-\037\177' | wc -c; } # prints the number of control bytes
    "${sample[@]}" >"$folder/sampled"
    NO_COLOR=1 terminal 80 "${sample[@]}" >"$folder/shown"
    is "a sample has no control bytes on a terminal" "$(steering <"$folder/shown")" 0
    is "a sample on a terminal is shown" "$([ "$(tr -dc '?' <"$folder/shown" | wc -c)" -gt 5 ] && echo yes)" yes
    is "a sample in a file has its control bytes" "$([ "$(steering <"$folder/sampled")" -gt 5 ] && echo yes)" yes
else
    echo "skip - terminals: no python3, or no pseudo-terminals"
fi
"$program" --plan --model qwen3-0.6b >"$folder/page"
says "the plan shows grouped heads and their width" '^model       28 layers, 16 heads of 128 \(8 key/value heads\), 1024 channels' "$folder/page"
"$program" --plan --gpus 2 --zero 3 >"$folder/page"
says "the plan of several GPUs names memory that it does not include" "^  estimated extra +1\.70 GB  CUDA's context and NCCL\$" "$folder/page"
"$program" --plan --device cpu >"$folder/page"
is "the plan of a CPU includes all memory" "$(grep -c "estimated extra" "$folder/page")" 0
# --- singular nouns after 1
"$build"/prepare_bytes --out "$folder/single" README.md >"$folder/page"
says "'1 file' is singular" ' from 1 file \(its end held out\)' "$folder/page"
one=("$program" --tokenizer bytes --layers 1 --heads 1 --channels 16 --seq-len 16 --micro-batch 1 --schedule constant --sample-tokens 0 --train)
"${one[@]}" "$folder/single_train.bin" --positions 16 --val "$folder/single_val.bin" --val-every 1 --val-batches 1 --save-every 1 --warmup 1 --steps 1 \
    --out "$folder/single" >>"$folder/page" 2>&1
says "'1 layer' is singular" '^model .* 1 layer, 1 head, 16 channels, 16 positions' "$folder/page"
says "'every step' is singular" '^validation .* every step' "$folder/page"
says "'1 step' is singular" '^length  *1 step, 16 tokens, ' "$folder/page"
says "'after 1 step' is singular" '^val loss [0-9.]+ after 1 step$' "$folder/page"
says "'1 of 1 step' is singular" '^done: 1 of 1 step, ' "$folder/page"
"$program" --plan --layers 1 --heads 1 --channels 64 --steps 1 >>"$folder/page"
says "the plan's nouns are singular" '^model +1 layer, 1 head, 64 channels: ' "$folder/page"
empty "no plural follows 1" "$(grep -aE '(^|[^-0-9.,])1 [a-z]+s\b' "$folder/page" | grep -v '1 process')"
# refused NAME CODE PATTERN FLAGS...: checks that a run with FLAGS fails with exit code CODE and a message that matches
# PATTERN
refused() {
    "${one[@]}" "${@:4}" >/dev/null 2>"$folder/said"
    is "$1: the exit code is $2" $? "$2"
    says "$1" "$3" "$folder/said"
}
refused "'1 position' is singular" 1 '^error: --seq-len 16: the model has 1 position; use --seq-len 1 or a larger --positions$' "$folder/single_train.bin" --positions 1
head -c 1028 "$folder/single_train.bin" >"$folder/odd.bin" # two tokens, and the header says 1
printf '\1\0\0\0' | dd of="$folder/odd.bin" bs=1 seek=8 conv=notrunc status=none
refused "'1 token' is singular in the error about a damaged file" 2 '^error: .*odd.bin is damaged: 1028 bytes, but its header says 1 token of 2 bytes; ' "$folder/odd.bin"
head -c 1026 "$folder/odd.bin" >"$folder/short.bin"
refused "'1 token' is singular in the error about a short file" 2 '^error: .*short.bin: 1 token makes 0 sequences of 16 \+ 1 tokens, .* \(1 row on 1 process\)' "$folder/short.bin"
refused "'1 update' is singular in the error about skipped updates" 4 '^error: training diverged: 1 update in a row had a non-finite loss or gradient; ' "$folder/single_train.bin" --lr 1000 --weight-decay 1000 --steps 40 --max-skipped 1 --recipe bf16
exit $failures
