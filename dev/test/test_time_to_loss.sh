#!/usr/bin/env bash
# Tests scripts/lab.py time-to-loss. With a program that only pretends to train: rates, lengths, interpolation, a stopped
# study, and errors. With the real one: a small study on the CPU.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. dev/test/program_fixture.sh
lab_tests 1 RATES_ADAMW RATES_MUON FRACTIONS SEED STEPS MODEL BATCH TRAINING TEXT
export VERSION=tested
lab() { scripts/lab.py time-to-loss "$@" 2>&1; }

# --- dry runs and errors
said=$(BIN=$folder lab --dry-run --out "$folder/dry" 'a b*' v gpt2 llama)
check "--dry-run succeeds" $? "$said"
[ "$(wc -l <<<"$said")" -eq 38 ] && [ "$(sort -u <<<"$said" | wc -l)" -eq 38 ]
check "--dry-run prints every run once" $? "$said"
has "--dry-run prints the runs that choose Muon's rate" "$said" '--model gpt2 --seq-len 1024 --micro-batch 64 --batch-tokens 65536 .*--schedule cosine .*--warmup 100 --recipe bf16 --master split16 --optimizer muon --lr 4\.8e-3 --train .a b\*. --val v --steps 1526 --seed 1 '
has "--dry-run prints shorter runs, with a shorter warm-up" "$said" '--model llama:d12 .*--warmup 45 --recipe coat --master split16 --optimizer muon --lr BEST .*--steps 687 '
has "the warm-up has at least 10 steps" "$(BIN=$folder FRACTIONS=.05 lab --dry-run a v)" '--warmup 10 .*--steps 76 '
[ ! -e "$folder/dry" ]
check "--dry-run writes nothing" $?
refused() { lab --out "$folder/refused" "$@"; }
refuses "an unknown setting is refused" 'gpt3: must be one of the settings gpt2, llama, bytes' refused README.md README.md gpt3
refuses "TRAIN_GLOB without VAL_GLOB is refused" 'name TRAIN_GLOB and VAL_GLOB' refused a
for word in 0 2.5 x; do
    FRACTIONS="1 $word" refuses "FRACTIONS=$word is refused" "FRACTIONS: $word: must be a number above 0 and at most 2" refused
done
SEED=one refuses "a seed that is not a number is refused" 'SEED: .*one' refused
TRAINING="--schedule cosine" refuses "TRAINING without --warmup is refused" '--warmup: .*missing' refused
RATES_MUON="1e-3 fast" refuses "a rate that the trainer refuses is refused" 'bytes: --lr fast: must be' refused

# --- with a program that pretends to train on a GPU
# The validation loss after 100 steps at the best rate is 3 for BF16 AdamW, 3.01 for COAT AdamW, 2.9 for BF16 Muon, and
# 2.8 for COAT Muon. Other rates add 0.1. Fewer steps add 0.2 log(100 / steps). Runs at rate 4.8e-3 diverge; at 7e-3 the
# device fails. A step takes 100 ms in BF16 and 80 ms in COAT, 10 ms more with Muon; the first step takes one second.
# With SLOW=STEPS, COAT Muon's run of that length waits for a signal.
cat >"$folder/pretend/train_gpt2_fp8" <<'DONE'
#!/usr/bin/env bash
while [ $# -gt 0 ]; do
    case $1 in
    --recipe | --optimizer | --lr | --steps | --warmup | --out) declare "${1#--}=$2"; shift ;;
    --plan=json) exit ;;
    esac
    shift
done
echo "$recipe $optimizer $lr $steps $warmup" >>"$CALLS"
[ "$lr" != 7e-3 ] || { echo "error: the GPU is lost" >&2; exit 3; }
awk -v recipe="$recipe" -v optimizer="$optimizer" -v lr="$lr" -v steps="$steps" -v slow="${SLOW:-}" 'BEGIN {
    coat = recipe == "coat"; muon = optimizer == "muon"
    for (s = 1; s <= steps; s++)
        printf "{\"step\":%d,\"loss\":9,\"grad_norm\":1,\"ms\":%d}\n", s, s == 1 ? 1000 : 100 - 20 * coat + 10 * muon
    if (lr == "4.8e-3" || (coat && muon && steps == slow)) exit
    loss = 3 + (muon ? -0.1 - 0.1 * coat : 0.01 * coat) + 0.1 * (lr != (muon ? "2.4e-3" : "6e-4")) + 0.2 * log(100 / steps)
    printf "{\"step\":%d,\"val_loss\":%.6f}\n", steps, loss
}' >"$out/log.jsonl"
[ "$lr" != 4.8e-3 ] || exit 4
[ "$recipe $optimizer $steps" != "coat muon ${SLOW:-}" ] || { trap 'exit 0' TERM; echo >"$out/waits"; for ((i = 0; i < 500; i++)); do sleep 0.02; done; }
DONE
chmod +x "$folder"/pretend/*
touch "$folder/train" "$folder/val"
refuses "a large setting without a GPU is refused" 'gpt2: needs a GPU' env BIN="$folder/pretend" scripts/lab.py time-to-loss --out "$folder/refused" README.md README.md
pretend() { PATH=$folder/gpus:$path BIN=$folder/pretend CALLS=$folder/calls STEPS=100 exec scripts/lab.py time-to-loss --out "$folder/study" "$folder/train" "$folder/val" "$@" 2>&1; }
SLOW=45 pretend >"$folder/said" &
study=$!
wait_for $study test -e "$folder/study/gpt2-45/coat-muon-2.4e-3/1/waits"
kill -TERM $study
wait $study
[ $? -eq 1 ] && grep -q '^error: stopped; ' "$folder/said" && [ ! -e "$folder/study/time-to-loss.md" ]
check "a signal stops the study" $? "$(cat "$folder/said")"
said=$(pretend)
check "a stopped study succeeds when started again" $? "$said"
diff - "$folder/calls" >"$folder/difference" <<'DONE'
bf16 adamw 3e-4 100 100
bf16 adamw 6e-4 100 100
bf16 adamw 1.2e-3 100 100
bf16 muon 1.2e-3 100 100
bf16 muon 2.4e-3 100 100
bf16 muon 4.8e-3 100 100
coat adamw 6e-4 100 100
coat adamw 6e-4 110 110
bf16 muon 2.4e-3 75 75
bf16 muon 2.4e-3 60 60
coat muon 2.4e-3 100 100
coat muon 2.4e-3 75 75
coat muon 2.4e-3 60 60
coat muon 2.4e-3 45 45
coat muon 2.4e-3 45 45
coat muon 2.4e-3 30 30
DONE
check "rates are chosen in BF16, no more lengths are tried once runs end on both sides of the target, and only the stopped run is repeated" $? "$(cat "$folder/difference")"
page=$(cat "$folder/study/time-to-loss.md")
has "the page names the machine and the version" "$page" '^20[0-9-]*, on Pretended GPU; version tested\.$'
has "the page has the command that made it" "$page" "^    STEPS=100 scripts/lab.py time-to-loss --out study train val$"
has "the page has the target loss" "$page" '^Target: 3\.0000, the final loss of BF16 AdamW after 100 steps\.$'
has "BF16 AdamW needs all of its steps" "$page" '^\| BF16 AdamW \| 6e-4 \| 100 \| 6,553,600 \| 10\.0 \| 1\.000 \|$'
has "a recipe and optimizer may need more steps than BF16 AdamW" "$page" '^\| COAT AdamW \| 6e-4 \| 105 \| 6,889,[0-9]* \| 8\.4 \| 0\.841 \|$'
has "the steps to the target are interpolated over the logarithm of the steps" "$page" '^\| BF16 Muon \| 2\.4e-3 \| 61 \| 3,974,957 \| 6\.7 \| 0\.667 \|$'
has "the seconds are computed from the median time per step" "$page" '^\| COAT Muon \| 2\.4e-3 \| 37 \| 2,410,940 \| 3\.3 \| 0\.331 \|$'
has "the page lists all runs" "$page" '^\| gpt2 \| COAT Muon \| 2\.4e-3 \| 1 \| 75 \| 2\.857536 \| 90\.000 \|$'
has "the page lists diverged runs" "$page" '^\| gpt2 \| BF16 Muon \| 4\.8e-3 \| 1 \| 100 \| diverged \| 110\.000 \|$'
! grep -q 'a rate outside' <<<"$page" && [ "$(grep -c "^gpt2-" "$folder/study/time-to-loss.tsv")" -eq 15 ]
check "time-to-loss.tsv has a row per run" $? "$(cat "$folder/study/time-to-loss.tsv")"
rm "$folder/calls"
said=$(FRACTIONS="0.75 0.6" RATES_ADAMW="6e-4 1.2e-3" pretend gpt2)
[ $? -eq 0 ] && [ ! -e "$folder/calls" ]
check "finished runs are reused for other lengths and rates" $? "$said" "$(cat "$folder/calls" 2>&1)"
page=$(cat "$folder/study/time-to-loss.md")
has "if the longest run ends above the target, the page has 'not reached'" "$page" '^\| COAT AdamW \| 6e-4 \| not reached \(loss 3\.010000\) \| – \| – \| – \|$'
has "if the shortest run reaches the target, the steps are an upper bound" "$page" '^\| COAT Muon \| 2\.4e-3 \| ≤ 60 \| ≤ 3,932,160 \| ≤ 5\.4 \| ≤ 0\.540 \|$'
has "the page says that the best rate is the highest or lowest tried" "$page" '^The best rate of BF16 AdamW is the first or the last of 6e-4 1\.2e-3; '
said=$(RATES_MUON="2.4e-3 7e-3" pretend)
[ $? -eq 1 ] && grep -q '^failed: gpt2-100, bf16-muon-7e-3, seed 1, status 3: the GPU is lost' <<<"$said" && grep -q '^The runs that choose the rates are not finished' "$folder/study/time-to-loss.md"
check "a failed run is reported, and no rate is chosen" $? "$said"
said=$(RATES_MUON=4.8e-3 pretend)
[ $? -eq 1 ] && grep -q '^failed: gpt2: BF16 Muon diverges at all of RATES_MUON; add lower rates' <<<"$said"
check "an optimizer that diverges at all rates is reported" $? "$said"
said=$(MODEL="--model gpt2-xl" pretend)
[ $? -eq 1 ] && grep -q '^error: setting gpt2: .*gpt2-xl.*; choose another --out' <<<"$said"
check "another model in the same folder is refused" $? "$said"

# --- a small model, on the CPU
export STEPS=16 MODEL="--layers 1 --heads 2 --channels 32 --positions 32" TEXT=$folder/text/ OMP_NUM_THREADS=1
export BATCH="--seq-len 32 --micro-batch 8 --batch-tokens 256 --threads 1" RATES_ADAMW=4e-3 RATES_MUON="4e-3 1.6e-2" FRACTIONS="1 0.5"
text "$TEXT"
said=$(lab --out "$folder/small")
check "a study on the CPU succeeds" $? "$said"
loss=$(field val_loss "$folder/small/bytes-16/bf16-adamw-4e-3/1/log.jsonl")
has "the target is the loss of BF16 AdamW" "$(cat "$folder/small/time-to-loss.md")" "^Target: $(printf %.4f "$loss"), "
has "the page's command has the last part of a path that ends in a slash" "$(cat "$folder/small/time-to-loss.md")" " TEXT=text/ scripts/lab.py"
has "the page has a row of COAT Muon" "$(cat "$folder/small/time-to-loss.md")" '^\| COAT Muon \| (4e-3|1\.6e-2) \| .*[0-9]'
exit $failures
