#!/usr/bin/env bash
# Tests signals, time limits, a second run in the same folder, other data and outliers. A stopped run that is resumed to
# its end must equal the run without interruption, byte for byte.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/run_fixture.sh
[ "$(cat "$folder"/texts/*.txt | cksum)" = "2103846281 326603" ]
check "this awk generates the test's text" $?
straight

lines() { grep -c . "$1"; }

# stop OUT SIGNAL GLOB: resumes in OUT and sends the signal once GLOB exists; sets $status
stop() {
    mkdir -p "$1"
    "$program" "${run[@]}" --out "$1" --resume >"$folder/out" 2>"$folder/said" &
    local pid=$!
    wait_for $pid exists "$3"
    kill "-$2" $pid
    wait $pid
    status=$?
}

# --- SIGTERM and SIGHUP save the current step, between two regular checkpoints or at any other moment
out=$folder/stopped
for at in '/log.jsonl TERM' '/step-00000032 HUP' '/step-00000096 TERM' '/.step-00000112.tmp TERM'; do
    stop "$out" "${at#* }" "$out${at% *}*"
    # the run may have finished before it got the signal
    [ $status -eq 0 ] && { grep -q "^done: $steps of" "$folder/out" ||
        grep -q "^ended by SIG${at#* } after step [0-9]* of $steps: \(saved; continue with --out $out --resume\|this process has done no step.*\)$" "$folder/said"; }
    check "SIG${at#* } at ${at% *} ends the run with 0" $? "status $status" "$(cat "$folder/said" "$folder/out")"
done
resume "$out" 2>"$folder/said" && same "$out"
check "a run resumed after SIGTERM and SIGHUP equals the uninterrupted run" $? "$(cat "$folder/said")"
resume "$out" 2>/dev/null && same "$out"
check "resuming a finished run changes nothing" $?

# timeout starts the program in the foreground, where SIGINT is not ignored, and sends the signal twice
timeout -s INT 0.3 "$program" "${run[@]}" --steps 100000000 --lr-final 1 --out "$folder/interrupted" >/dev/null 2>"$folder/said"
[ $? -eq 124 ] && grep -q '^ended by SIGINT ' "$folder/said" && [ "$(lines "$folder/said")" -eq 2 ]
check "SIGINT sent twice at the same time is one request" $? "$(cat "$folder/said")"
newest=("$folder"/interrupted/step-*)
[[ $(basename "${newest[-1]}") > $last ]] || { resume "$folder/interrupted" 2>/dev/null && same "$folder/interrupted" '"settings":'; } # the settings differ, because the first run had more --steps
check "a run resumed after SIGINT equals the uninterrupted run" $?

# --- a second signal, during a pass that takes seconds
"$program" --tokenizer bytes --layers 4 --channels 256 --heads 4 --seq-len 512 --micro-batch 24 --train "$data" --steps 9 --threads 1 \
    --out "$folder/second" >"$folder/out" 2>"$folder/said" &
pid=$!
wait_for $pid grep -q '^batch ' "$folder/out"
sleep 0.3
kill -TERM $pid
sleep 0.5
kill -TERM $pid 2>/dev/null
wait $pid
status=$?
[ $status -eq 143 ] && grep -q '^stopping after the current micro-batch' "$folder/said"
check "a second signal ends the run at once with 143" $? "status $status" "$(cat "$folder/said")"

# --- a pipe without a reader, full except for 4 KB, blocks the output of the first steps
mkfifo "$folder/pipe" && exec 7<>"$folder/pipe"
dd if=/dev/zero of="$folder/pipe" bs=4096 count=1024 oflag=nonblock conv=notrunc 2>/dev/null
dd of=/dev/null bs=4096 count=1 <&7 2>/dev/null
timeout 20 "$program" "${run[@]}" --json --steps 100000000 --lr-final 1 --out "$folder/held" >&7 2>"$folder/said" 7>&- &
pid=$!
wait_for $pid exists "$folder/held/log.jsonl"
sleep 0.5
kill -TERM $pid
wait $pid
status=$?
exec 7>&-
[ $status -eq 0 ] && grep -q '^ended by SIGTERM after step [1-9].*: saved' "$folder/said" && compgen -G "$folder/held/step-*" >/dev/null
check "a blocked stdout does not prevent SIGTERM from saving" $? "status $status" "$(cat "$folder/said")" "$(ls "$folder/held")"

# a blocked stderr blocks the saving thread, which reports that the vocabulary is missing
vocabulary "$folder/words" 257
mkfifo "$folder/full" && exec 7<>"$folder/full"
timeout 40 "$program" "${run[@]}" --tokenizer "$folder/words/vocab.json" --vocab 257 --steps 100000000 --lr-final 1 --save-every 50 --keep 2 \
    --out "$folder/wordless" 2>&7 >/dev/null 7>&- &
pid=$!
wait_for $pid exists "$folder/wordless/step-*"
dd if=/dev/zero of="$folder/full" bs=4096 count=1024 oflag=nonblock conv=notrunc 2>/dev/null
dd if=/dev/zero of="$folder/full" bs=1 count=4096 oflag=nonblock conv=notrunc 2>/dev/null
rm -r "$folder/words"
sleep 2 # time for some saves
kill -TERM $pid
wait $pid
status=$?
exec 7>&-
done=$(tail -n 1 "$folder/wordless/log.jsonl" | sed 's/.*"step":\([0-9]*\).*/\1/')
[ $status -eq 0 ] && [ -d "$folder/wordless/$(printf 'step-%08d' "$done")" ]
check "a blocked stderr does not prevent SIGTERM from saving" $? "status $status, step $done" "$(ls -A "$folder/wordless")"

# --- SIGUSR1 saves, and the run continues
"$program" "${run[@]}" --save-every 0 --out "$folder/asked" >/dev/null 2>"$folder/said" &
pid=$!
wait_for $pid exists "$folder/asked/log.jsonl"
kill -USR1 $pid
wait $pid
status=$?
[ $status -eq 0 ] && [ "$(find "$folder/asked" -name 'step-*' | wc -l)" -eq 2 ] && same "$folder/asked"
check "SIGUSR1 saves one additional checkpoint" $? "status $status" "$(cat "$folder/said")" "$(ls "$folder/asked")"

# --- --time-limit, for a scheduler's limit
begin=$(date +%s%N)
"$program" "${run[@]}" --steps 100000000 --lr-final 1 --save-every 0 --time-limit 2s --out "$folder/limit" >"$folder/out" 2>"$folder/said"
status=$? ms=$((($(date +%s%N) - begin) / 1000000))
[ $status -eq 0 ] && [ $ms -lt 2500 ] && grep -q '^ended by --time-limit after step [1-9]' "$folder/said"
check "--time-limit 2s ends the run with 0 within 2.5 s" $? "status $status after $ms ms" "$(cat "$folder/said")"
newest=$(basename "$(find "$folder/limit" -name 'step-*')")
"$program" "${run[@]}" --steps $((10#${newest#step-})) --save-every 0 --out "$folder/to-there" >/dev/null &&
    diff -r "$folder/limit/$newest" "$folder/to-there/$newest"
check "--time-limit saves the checkpoint of a run with that number of steps" $?
"$program" "${run[@]}" --time-limit 1ms --out "$folder/none" >/dev/null 2>&1
status=$?
[ $status -eq 1 ]
check "--time-limit without a known unit is refused" $?

# --- two runs in one folder
"$program" "${run[@]}" --out "$folder/shared" >/dev/null 2>&1 &
pid=$!
wait_for $pid exists "$folder/shared/log.jsonl"
for flag in --resume --overwrite ""; do
    "$program" "${run[@]}" --out "$folder/shared" $flag >/dev/null 2>"$folder/said"
    [ $? -eq 2 ] && [ "$(lines "$folder/said")" -eq 1 ] && grep -q "^error: .*another run.*process $pid on " "$folder/said"
    check "a second run in the folder${flag:+ ($flag)} is refused, and the error names the first" $? "$(cat "$folder/said")"
done
wait $pid && same "$folder/shared"
check "a refused second run does not disturb the first" $?

# --- settings recorded in the checkpoint need no flags
little=(--tokenizer bytes --train "$data" --val "$val" --val-every 20 --val-batches 20 --save-every $every
    --sample-tokens 0 --quiet --threads 1)
# half FOLDER: copies the uninterrupted run with only its first five checkpoints
half() { cp -r "$folder/straight" "$1" && find "$1" -name 'step-*' | sort | tail -n +6 | xargs rm -r; }
half "$folder/bare"
"$program" "${little[@]}" --out "$folder/bare" --resume --steps $steps >/dev/null 2>"$folder/said" && same "$folder/bare" && ! grep '^resume: --' "$folder/said"
check "a run resumed without flags of recipe, batch and rate equals the uninterrupted run" $? "$(cat "$folder/said")"
half "$folder/other-rate"
"$program" "${little[@]}" --out "$folder/other-rate" --resume --lr 1e-3 --steps 100 >/dev/null 2>"$folder/said"
[ $? -eq 0 ] && [ "$(grep '^resume: --' "$folder/said")" = "resume: --lr was 0.003 and is now 0.001" ] && [ -e "$folder/other-rate/step-00000100" ]
check "a flag overrides the checkpoint's setting, with one line about it" $? "$(cat "$folder/said")"

# --- other data
other=("${run[@]/#$data/$val}" --out "$folder/shared" --resume --steps $((steps + 2)))
"$program" "${other[@]}" >/dev/null 2>"$folder/said"
[ $? -eq 2 ] && [ "$(grep -c '^error: .*shard, .*fingerprint .*shard, .*fingerprint .*--allow-other-data' "$folder/said")" -eq 1 ]
check "other data are refused on resume" $? "$(cat "$folder/said")"
same "$folder/shared"
check "a resume refused for other data changes nothing" $?
"$program" "${other[@]}" --allow-other-data >/dev/null 2>"$folder/said" && grep -q '^note: .*different data' "$folder/said"
check "--allow-other-data accepts other data on resume" $? "$(cat "$folder/said")"

# --- Several data sets. A run that is killed and resumed, in several epochs of the small set, must equal an
# uninterrupted one.
"$build"/prepare_bytes --out "$folder/small" "$folder/texts/001.txt" >/dev/null || exit 1
second=(--train "$folder/small_train.bin")
if command -v python3 >/dev/null; then # writes packed examples with a loss mask, for --documents apart
    data_python "$folder" <<'PYTHON' || exit 1
import sys

from prepare_masks import masked_file

with open(sys.argv[1] + "/small_train.bin", "rb") as file:
    tokens = file.read()[1024:]
count = len(tokens) // 2
with open(sys.argv[1] + "/examples.bin", "wb") as file:
    file.write(masked_file(2, tokens, range(0, count, 23), bytes(i % 23 > 9 for i in range(count))))
PYTHON
    second=(--train "$folder/examples.bin" --documents apart)
fi
mixed=("${run[@]}" --train-weight 0.7 "${second[@]}" --train-weight)
"$program" "${mixed[@]}" 0.3 --out "$folder/mixed" >/dev/null || bad "training on two data sets succeeds"
mkdir "$folder/killed"
for at in 32 64 96; do
    "$program" "${mixed[@]}" 0.3 --out "$folder/killed" --resume >/dev/null 2>&1 &
    pid=$!
    wait_for $pid exists "$folder/killed/step-$(printf %08d $at)"
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
done
[ ! -d "$folder/killed/$last" ]
check "runs on two data sets are killed before they end" $? "$(ls "$folder/killed")"
"$program" "${mixed[@]}" 0.3 --out "$folder/killed" --resume >/dev/null 2>"$folder/said" && diff -r "$folder/mixed/$last" "$folder/killed/$last" &&
    diff <(strip "$folder/mixed/log.jsonl") <(strip "$folder/killed/log.jsonl")
check "killed runs on two data sets that are resumed have the bytes of an uninterrupted one" $? "$(cat "$folder/said")"
# 160 steps of 8 sequences of 32 tokens: 1280 sequences, of which 0.7 are 896 and 0.3 are 384
seen=$(grep "\"step\":$steps,\"train\"" "$folder/killed/log.jsonl" | grep -o '"sequences":[0-9]*,"tokens":[0-9]*' | tr '\n' ' ')
[[ $seen =~ ^'"sequences":'(89[0-9])',"tokens":'([0-9]*)' "sequences":'(38[0-9])',"tokens":'([0-9]*)' '$ ]] &&
    [ $((BASH_REMATCH[1] + BASH_REMATCH[3])) -eq 1280 ] && [ "${BASH_REMATCH[4]}" -eq $((32 * BASH_REMATCH[3])) ]
check "the log has the numbers of sequences and tokens read from each data set" $? "$seen"
"$program" "${mixed[@]}" 0.4 --out "$folder/killed" --resume --steps $((steps + 2)) >/dev/null 2>"$folder/said"
[ $? -eq 2 ] && grep -q '^error: .* different data (2 sets of 0.7 : 0.3, .* names now (2 sets of 0.7 : 0.4, .*and with the same weights.*--allow-other-data$' "$folder/said"
check "other data set weights are refused on resume" $? "$(cat "$folder/said")"
"$program" "${mixed[@]}" 0.4 --out "$folder/killed" --resume --steps $((steps + 2)) --allow-other-data >/dev/null 2>"$folder/said" && grep -q '^note: .*different data' "$folder/said"
check "--allow-other-data accepts other data set weights on resume" $? "$(cat "$folder/said")"
# one --train with a pattern for all files must read like one --train per file
"$program" "${run[@]/#$data/$folder/s[rm]*_train.bin}" --steps 20 --out "$folder/glob" >/dev/null && "$program" "${run[@]}" --train "$folder/small_train.bin" --steps 20 --out "$folder/each" >/dev/null &&
    diff -r "$folder/glob/step-00000020" "$folder/each/step-00000020"
check "data sets without weights are read like one set" $?

# --- consecutive skipped updates end the run; earlier checkpoints stay
diverges() { # NAME PATTERN FLAGS...: checks that the run ends with exit code 4 and one line about divergence that matches
    local name=$1 pattern=$2 status=0
    shift 2
    "$program" "${run[@]}" "$@" >/dev/null 2>"$folder/said" || status=$?
    [ $status -eq 4 ] && [ "$(lines "$folder/said")" -eq 1 ] && grep -qE "^error: training diverged: $pattern" "$folder/said"
    check "$name" $? "status $status" "$(cat "$folder/said")"
}
diverges "outliers in a row end with 4" "2 updates in a row had an outlying.*; resume from an earlier checkpoint with a smaller --lr$" --skip-grad-z 0.01 --max-skipped 2 --steps 1000 --out "$folder/outliers"
[ "$(tail -n 1 "$folder/outliers/log.jsonl" | grep -o '"skipped":')" ] && [ -d "$folder/outliers/step-00000128" ]
check "outliers are marked in the log" $? "$(tail -n 2 "$folder/outliers/log.jsonl")"
blowup=(--lr 1000 --weight-decay 1000 --max-skipped 3 --steps 1000) # weights grow a million times in a step
diverges "losses that are not numbers end with 4" "3 updates in a row had an outlying or non-finite.*; start again with a smaller --lr or a longer --warmup$" "${blowup[@]}" --out "$folder/nan"
# failed NAME PATTERN FLAGS...: checks a run whose last step comes before --max-skipped would end the run. The exit code
# must be 0, and the last line of the output must be a warning that matches PATTERN. test_saver.c tests the warning
# about weights that are not finite.
failed() {
    local name=$1 pattern=$2 status=0
    shift 2
    "$program" "$@" >"$folder/out" 2>"$folder/said" || status=$?
    [ $status -eq 0 ] && [ "$(lines "$folder/out")" -eq 2 ] && head -n 1 "$folder/out" | grep -q '^done: .* of training$' && tail -n 1 "$folder/out" | grep -qE "^warning: $pattern$"
    check "$name" $? "status $status" "$(cat "$folder/out" "$folder/said")"
}
plain_run=("${run[@]}" --skip-grad-z 0 --val-every 0 --master split16)
failed "a gradient that is not finite at the end prints a warning" "the last loss or gradient is not finite; start again with a smaller --lr or a longer --warmup" "${plain_run[@]}" "${blowup[@]}" --max-skipped 100 --steps 8 --save-every 0
failed "a loss that has risen prints a warning" "the loss has risen, from [0-9.]+ in the first step to [0-9.]+ in the last 3 steps; try a smaller --lr" "${plain_run[@]}" --lr 1 --steps 5 --out "$folder/risen"
failed "a loss that has risen in a resumed run prints a warning" "the loss has risen, from [0-9.]+ in the first step to [0-9.]+ in the last 4 steps; try a smaller --lr" "${plain_run[@]}" --lr 1 --steps 7 --out "$folder/risen" --resume
said=$("$program" "${run[@]}" --steps 20 --out "$folder/calm" 2>&1) && ! grep -a "^warning: " <<<"$said"
check "a run whose loss falls prints no warning" $? "$said"
diverges "losses that are not finite end with 4 without the guard" "3 updates in a row had a non-finite.*; start again with a smaller --lr or a longer --warmup$" "${blowup[@]}" --skip-grad-z 0 --out "$folder/nan0"

# --- a learning rate that jumps on resume prints a note with both rates; an unchanged one prints none
rates=(--tokenizer bytes --layers 1 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --sample-tokens 0 --quiet --train "$data" --lr 1e-3 --lr-final 0)
# rate NAME SCHEDULE STEPS PATTERN FLAGS...: resumes a run after 10 of STEPS steps with FLAGS, and checks the note about
# the learning rate; PATTERN "": checks that there is none
rate() {
    local said status=0
    rm -rf "$folder/rate"
    "$program" "${rates[@]}" --schedule "$2" --steps "$3" --save-every 10 --out "$folder/rate" >/dev/null 2>&1
    rm -rf "$folder"/rate/step-0000001[1-9] "$folder"/rate/step-000000[2-9]*
    said=$("$program" "${rates[@]}" --schedule "$2" --steps "$3" --out "$folder/rate" --resume "${@:5}" 2>&1 >/dev/null | grep "the learning rate jumps") || status=$?
    if [ -n "$4" ]; then [ $status -eq 0 ] && grep -qE "^note: the learning rate jumps from $4 at step 11, " <<<"$said" && [ "$(wc -l <<<"$said")" -eq 1 ] && [[ $said != *"--lr 0;"* ]]; else [ -z "$said" ]; fi &&
        [ -n "$(find "$folder/rate" -maxdepth 1 -name 'step-*' ! -name step-00000010)" ]
    check "$1" $? "$said"
}
rate "a note reports the jump of the rate: more steps of a finished cosine schedule" cosine 10 "2.45e-05 at step 10 to 0.0005" --steps 20
rate "a note reports the jump of the rate: more steps of a finished linear schedule" linear 10 "0.0001 at step 10 to 0.0005" --steps 20
rate "a note reports the jump of the rate: more steps of a finished wsd schedule" wsd 10 "0.000293 at step 10 to 0.001" --steps 20
rate "a note reports the jump of the rate: more steps in the middle of a cosine schedule" cosine 20 "0.000578 at step 10 to 0.000994" --steps 200
rate "a note reports the jump of the rate: another --lr" constant 20 "0.001 at step 10 to 0.004" --lr 4e-3
rate "a note reports the jump of the rate: a longer warm-up" constant 20 "0.001 at step 10 to 0.00011" --warmup 100
rate "a note reports the jump of the rate: another schedule" linear 10 "0.0001 at step 10 to 0.001" --schedule constant --steps 20
rate "no note reports a jump of the rate: the same schedule" cosine 12 ""
rate "no note reports a jump of the rate: more steps of a wsd schedule in its constant part" wsd 20 "" --steps 40
rate "no note reports a jump of the rate: a constant schedule with the last rate" linear 10 "" --schedule constant --lr 1e-4 --steps 20
rates+=(--lr 0)
rate "a note reports a jump of the rate from 0, without the advice to use --lr 0" constant 20 "0 at step 10 to 0.004" --lr 4e-3

# --- errors during a run lose nothing of the finished steps
"$program" --layers 1 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --vocab 300 --train "$data" --steps 3 --prompt Once --sample-tokens 5 \
    --quiet --out "$folder/prompt" >"$folder/out" 2>"$folder/said"
[ $? -eq 1 ] && grep -q '^error: --prompt' "$folder/said" && [ ! -s "$folder/prompt/log.jsonl" ]
check "an unusable --prompt is an error before the first step" $? "$(cat "$folder/said" "$folder/out")"
# a token outside the vocabulary in the last sequence, which earlier runs did not reach
small=(--tokenizer bytes --layers 1 --heads 2 --channels 32 --seq-len 32 --micro-batch 4 --sample-tokens 0 --quiet --no-shuffle)
head -c $((1024 + 2 * 32 * 40 + 2)) "$data" >"$folder/bad.bin"
poke "$folder/bad.bin" $((1024 + 2 * 32 * 39)) '\xff\xff'
poke "$folder/bad.bin" 8 '\x01\x05\x00\x00' # 32 * 40 + 1 tokens
without_checksum "$folder/bad.bin"
"$program" "${small[@]}" --train "$folder/bad.bin" --steps 10 --out "$folder/bad" >/dev/null 2>"$folder/said"
[ $? -eq 2 ] && [ -d "$folder/bad/step-00000009" ] && grep -q '^error: ' "$folder/said"
check "bad data end the run with 2 and a checkpoint of the last complete step" $? "$(cat "$folder/said")" "$(ls "$folder/bad")"
"$program" "${small[@]}" --train "$data" --steps 6 --save-every 2 --out "$folder/done" >/dev/null 2>&1
cp "$folder/done/log.jsonl" "$folder/done.jsonl"
"$program" "${small[@]}" --train "$data" --steps 2 --resume=2 --out "$folder/done" >/dev/null 2>"$folder/said"
[ $? -eq 1 ] && [ -d "$folder/done/step-00000006" ] && cmp -s "$folder/done.jsonl" "$folder/done/log.jsonl"
check "--resume=STEP with nothing left to do changes nothing" $? "$(cat "$folder/said")" "$(ls "$folder/done")"
ls "$folder/done" >"$folder/done.files"
"$program" "${small[@]}" --train "$data" --steps 6 --resume --out "$folder/done" >/dev/null 2>"$folder/said" && diff "$folder/done.files" <(ls "$folder/done")
check "resuming a finished run adds no file" $? "$(cat "$folder/said")" "$(ls "$folder/done")"

# --- slurm_requeue.sh with replacements of Slurm's commands: a job that ends early is requeued until the run is finished
mkdir "$folder/bin"
cat >"$folder/bin/srun" <<'END'
#!/usr/bin/env bash
timeout --preserve-status -s TERM "$LIMIT" "$@"
END
printf '#!/usr/bin/env bash\necho "$@" >>"$REQUEUED"\n' >"$folder/bin/scontrol"
chmod +x "$folder"/bin/*
job() {
    PATH=$folder/bin:$PATH REQUEUED=$folder/requeued SLURM_JOB_ID=77 PROGRAM=$program OUT=$folder/slurm STEPS=$steps \
        bash scripts/slurm_requeue.sh "$@" --warmup 0 --lr-final 1 --weight-decay 0 --keep 0 "${run[@]}" >/dev/null 2>"$folder/said"
}
: >"$folder/requeued"
for LIMIT in 0.2 0.3 100; do export LIMIT && job; done
[ -d "$folder/slurm/$last" ] && [ -s "$folder/requeued" ] && ! grep -qvx 'requeue 77' "$folder/requeued"
check "a Slurm job is requeued until the run is finished" $? "$(cat "$folder/said" "$folder/requeued")"
same "$folder/slurm"
check "a requeued Slurm job equals the uninterrupted run" $?
: >"$folder/requeued"
job --lr nonsense --model d6
[ $? -eq 1 ] && [ ! -s "$folder/requeued" ]
check "a Slurm job is not requeued after an error" $? "$(cat "$folder/said")"
exit $failures
