#!/usr/bin/env bash
# Tests scripts/lab.py reproduce: a dry run, its page on a machine without a GPU and, with programs that only pretend to
# run on a GPU, that every value is in its row. Also tests figures of the docs and scripts/results that come from the
# same sources.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
. dev/test/program_fixture.sh
needs_python "scripts/lab.py"
export BIN=${BIN:-.} BUILD=${BUILD:-build}
unset TRAIN TEXTS TOKENS QUICK MPIRUN CUDA_VISIBLE_DEVICES
export TEXT=coat STEPS=20
without_gpu
mkdir "$folder/gpu" "$folder/programs"

# --- without a GPU
said=$(scripts/lab.py reproduce --dry-run --out "$folder/dry" all 2>&1)
check "--dry-run succeeds" $? "$said"
has "--dry-run prints the training from point to point" "$said" 'train_gpt2_fp8_cpu --model olmo:d2 .*--schedule constant .*--beta2 0\.999 --recipe bf16 --master split16 --steps 5 .*--resume'
has "--dry-run prints the plans" "$said" '--plan=json --model llama2-7b .*--gpus 8 --zero 3 --recipe coat'
has "--dry-run prints quant_error and its histograms" "$said" "quant_error --every 1 $folder/dry/states-0\\.95/step-00000020 $folder/dry/ranges-0\\.95\\.tsv"
[ ! -e "$folder/dry" ]
check "--dry-run writes nothing" $?
said=$(scripts/lab.py reproduce --dry-run --out "$folder/dry" figure4 2>&1)
has "--dry-run names the pieces that need a GPU" "$said" '^# figure4 needs a GPU'

said=$(scripts/lab.py reproduce --out "$folder/cpu" 2>&1)
check "all pieces succeed on the CPU" $? "$said"
page=$(cat "$folder/cpu/reproduce.md")
planned=$("$BIN/train_gpt2_fp8_cpu" --plan=json --model llama2-7b --seq-len 2048 --micro-batch 2 --gpus 4 \
    --zero 3 --recipe coat --master split16 | sed 's/.*"total_bytes": \([0-9]*\).*/\1/' | awk '{ printf "%.1f", $1 / 1e9 }')
has "table 7: a row has the paper's figures and the plan's" "$page" "^\| llama2-7b \| 4 \| 2048 \| equal batch \| coat \| 2 \| – \| – \| 3\.2 → .* \| 16\.9 → .* \| $planned \| 35\.6 → – \| 1\.55 → .* \| planned, not measured \|$"
has "table 7: the largest batch has the paper's tokens/s" "$page" '^\| llama2-7b \| 8 \| 2048 \| largest in 80GB \| coat \| 8 → [0-9]+ \([0-9.]+\) \| 11241 → – \| 1\.36 → – \|'
has "table 7: a row says that the paper ran out of memory" "$page" '^\| llama2-7b \| 1 \| 2048 \| equal batch \| bf16 \| 1 \|.* \| out of memory → – \| 1\.00 \| planned, not measured: does not fit in 80 GB \|$'
has "table 7: a row says that both the paper and this program run out of memory" "$page" '^\| llama-30b \| 8 \| 2048 \| largest in 80GB \| bf16 \| out of memory → out of memory \|'
has "table 7: Llama-2-13B with 1,024 tokens, an additional row of the paper, is on the page" "$page" '^\| llama2-13b \| 2 \| 1024 \| equal batch \| coat \| 1 \|.* \| 73\.2 → – \|'
has "table 7: OLMo-7B is on the page" "$page" '^\| olmo-7b \| 2 \| 2048 \| equal batch \| fp8-linear \| 2 \|'
has "table 7: the page has the command that measures a planned row" "$page" '^MODELS=llama-30b GPUS=8 MICRO_BATCH=1 LENGTH=2048 STEP_TOKENS=32768 scripts/measure\.sh TOKENS bf16 fp8-linear coat$'
has "GPT-2 has the plan's moments and saved activations" "$page" "^\\| gpt2 \\| 1 \\| 1024 \\| equal batch \\| coat \\| 64 \\| – \\| – \\| $("$BIN/train_gpt2_fp8_cpu" --plan=json --model gpt2 --recipe coat --micro-batch 64 |
    sed 's/.*"moments": \([0-9]*\).*"saved": \([0-9]*\).*/\1 \2/' | awk '{ printf "%.1f \\| %.1f", $1 / 1e9, $2 / 1e9 }') \\| [0-9.]+ \\| – \\|"
has "table 2: a row has a layer's saved activations in the paper's units" "$page" '^\| coat \| 1\.00 → 1\.13 \| 4\.00 → 3\.02 \| 2\.00 → 0\.00 \| 3\.00 → 3\.02 \| 3\.33 → 1\.00 \| 13\.33 → 8\.17 \| 1\.70 → 1\.97 \(1\.16\) \|$'
has "table 6: a row has the saved activations per token" "$page" '^\| olmo \| 4096, 2048 \| coat \| 5\.89 → – \| 10\.96 → – \| 16\.85 → – \| 1\.58 → – \| 66896 \| 13\.80 → 8\.17 \(0\.59\) \| 1\.65 → 1\.97 \(1\.19\) \| memory planned, time not measured \|$'
has "table 6: a layer that the paper does not measure is on the page" "$page" '^\| llama2-7b \| 4096, 4096 \| bf16 \| – \| – \| – \| – \| 131720 \| 16\.08 \| 1\.00 \|'
has "the page names the stored results" "$page" 'scripts/results: losses\.md .* baselines\.md .* differences\.md'
has "the page's head says that there is no GPU" "$page" '^\| GPU \| none'
has "the page's head has the duration" "$page" '^\| took \| [0-9]+ min [0-9]+ s \|$'
error=$(awk '$1 == "E4M3" && NF == 7 { plain = $2 } $1 == "E4M3+exp" && NF == 7 { printf "%.2f", $3 / plain }' "$folder/cpu/quant_error-0.95-20.log")
has "table 1: the error with expansion is quant_error's" "$page" "^\| E4M3\+exp \| .* \| 0\.61 → $error \("
[ "$(grep -cE '^\| 0\.(95|999) \| (1|5|20) \| ([0-9.]+ \| ){5}[0-9.]+ \([0-9.]+ \.\.\. [0-9.]+\) \| [0-9.]+, 2\^[-0-9.]+ \.\.\. 2\^[0-9.]+, [0-9.]+ \|' <<<"$page")" -eq 6 ]
check "table 1: the page has states at three steps for two values of beta2" $? "$page"
! compgen -G "$folder/cpu/states-*/step-*" >/dev/null
check "table 1 leaves no checkpoints" $?
[ "$(grep -cE '^\| (E4M3|E5M2|DE8)(\+exp)? \| ' <<<"$page")" -eq 12 ]
check "table 1: all formats have a row" $? "$page"

for setting in STEPS TOKENS SPEED_STEPS; do
    refuses "$setting with a leading zero is refused" "$setting: must be a whole number of at least 1 .is 0100" env $setting=0100 scripts/lab.py reproduce --out "$folder/octal"
done
said=$(scripts/lab.py reproduce --out "$folder/twice" table2 table2 2>&1)
[ $? -eq 0 ] && [ "$(grep -c '^## ' "$folder/twice/reproduce.md")" -eq 1 ]
check "a piece that is named twice is on the page once" $? "$said"
refuses "reproduce refuses an unknown flag" '.*--dryrun' scripts/lab.py reproduce --dryrun
refuses "reproduce refuses an unknown piece" 'table9: must be one of table1, table2' scripts/lab.py reproduce table9
mkdir "$folder/nothing"
ln -s "$(realpath "$BUILD/prepare_bytes")" "$folder/nothing/"
refuses "a missing program is refused" 'nothing/quant_error is not built; run: make .*nothing/quant_error' \
    env BUILD="$folder/nothing" scripts/lab.py reproduce --out "$folder/lacks" table1
[ ! -e "$folder/lacks" ]
check "a missing program is refused before anything runs" $?

# table1 removes its checkpoints if it fails and if it is stopped
count=1
# started: true if $count programs have started, each of which has written its process id to $folder/running
started() { [ "$(wc -l 2>/dev/null <"$folder/running")" = "$count" ]; }
printf '#!/bin/sh\nls -d "$3" >>%s/measured\necho "error: no states"\nexit 3\n' "$folder" >"$folder/nothing/quant_error"
chmod +x "$folder/nothing/quant_error"
said=$(BUILD=$folder/nothing scripts/lab.py reproduce --out "$folder/states" table1 2>&1)
[ $? -eq 1 ] && grep -q '^failed: no states' <<<"$said" && grep -q 'states-0.95/step-' "$folder/measured" && [ -z "$(find "$folder/states" -name '*step-*')" ]
check "a failed table1 leaves no checkpoint" $? "$said $(find "$folder/states")"
printf '#!/bin/sh\necho $$ >>%s/running\nexec sleep 60\n' "$folder" >"$folder/nothing/quant_error"
BUILD=$folder/nothing scripts/lab.py reproduce --out "$folder/states" table1 >/dev/null 2>&1 &
script=$!
wait_for $script started
kill $script
wait $script
[ $? -eq 143 ] && started && [ -z "$(find "$folder/states" -name '*step-*')" ]
check "a stopped table1 leaves no checkpoint" $? "$(find "$folder/states")"

# --- with programs that pretend to run on a GPU
cat >"$folder/gpu/nvidia-smi" <<'END'
#!/bin/sh
case "$*" in
*compute_cap*) echo 9.0 ;;
*=memory.total*) echo "${MEMORY:-[N/A]}" ;;
*memory.total*) echo "Pretended GPU, 1000 MiB, 1.2.3" ;;
*=index*) echo 0 ;;
*) echo "Pretended GPU" ;;
esac
END
cat >"$folder/programs/bench_layer_gpu" <<'END'
#!/bin/sh
echo "One layer, $*"
echo "| layer of | hidden, length | recipe | forward, ms | backward, ms | both, ms | times bf16's speed | saved, bytes per token | U | times less than bf16 | TFLOP/s, of ceiling | the paper |"
echo "| olmo | 2048, 2048 | bf16 | 4.000 | 6.000 | 10.000 | 1.00 | 65872 | 16.08 | 1.00 | 600, 80 % | BF16: 11.83 ms (1.00), 22.77 U (1.00) |"
echo "| olmo | 2048, 2048 | bf16 --recompute 2 | 4.000 | 7.000 | 11.000 | 0.91 | 46672 | 11.39 | 1.41 | 550, 73 % | |"
echo "| olmo | 2048, 2048 | coat | 1.500 | 2.500 | 4.000 | 2.50 | 33456 | 8.17 | 1.97 | 900, 65 % | COAT: 8.04 ms (1.47), 13.80 U (1.65) |"
echo "| llama2-7b | 4096, 2048 | bf16 | 8.000 | 12.000 | 20.000 | 1.00 | 131720 | 16.08 | 1.00 | 600, 80 % | |"
END
cat >"$folder/programs/bench_group_scaling_gpu" <<'END'
#!/bin/sh
echo "ceiling: device copy of 1.1 GB, 4000 GB/s read and written"
echo "| 11008 x 16384 | 0.137 | 2633 GB/s, 66 % | 0.0040 (16.4 GB/s, 80 %) | 0.0050 (1126.4 GB/s, 90 %) | 34.2 | 1.37 and 0.10 (13.7) |"
END
cat >"$folder/programs/train_gpt2_fp8" <<'END'
#!/bin/sh
echo "${CUDA_VISIBLE_DEVICES:-all}" >>"$(dirname "$0")/gpus"
sleep "${PAUSE:-0.2}"
case "$*" in *"${FAILS:-none}"*) echo "error: device memory: $FAILS does not fit" >&2; exit 3 ;; esac
case "$*" in *"--recipe coat"*) ms=100 driver=5000 ;; *"--recipe bf16"*) ms=150 driver=10000 ;; *) ms=125 driver=8000 ;; esac
for step in $(seq 20); do echo "{\"step\":$step,\"tokens\":$((step * 524288)),\"ms\":$ms}"; done
printf '  total %s.5 MB\n  driver reports %s.0 MB\n' $driver $driver >&2
END
printf '#!/bin/sh\nshift 4\nexec "$@"\n' >"$folder/gpu/mpirun-2" # mpirun-2 --bind-to none -np N PROGRAM: runs one process
chmod +x "$folder"/gpu/* "$folder"/programs/*
ln -s "$(realpath "$BUILD/narrow_tokens")" "$folder/programs/"
"$BUILD/prepare_bytes" --out "$folder/a b" coat >/dev/null
export TRAIN="$folder/a b_train*"
ln -s "$(realpath "$BIN/train_gpt2_fp8_cpu")" "$folder/programs/"
tokens() { od -An -v -tu2 -w2 -j1024 "$1"; }
"$BUILD/narrow_tokens" 100 3000 "$TRAIN" "$folder/narrow.bin" >/dev/null &&
    cmp <(tokens "$folder/narrow.bin") <(tokens "$folder"/a\ b_train.bin | awk '$1 < 100' | head -n 3000)
check "narrow_tokens keeps tokens below the vocabulary in order" $?
refuses "narrow_tokens refuses a vocabulary that is not a number" '1e5, 10: ' "$BUILD/narrow_tokens" 1e5 10 "$TRAIN" "$folder/narrow.bin"
mkfifo "$folder/pipe"
said=$("$BUILD/narrow_tokens" 100 3000 "$TRAIN" "$folder/pipe" 2>&1)
[ $? -eq 2 ] && [[ $said == "error: $folder/pipe is not a regular file"* ]]
check "narrow_tokens refuses to replace something that is not a file" $? "$said"
export PATH="$folder/gpu:$path"
said=$(BIN=$folder/programs BUILD=$folder/programs QUICK=1 scripts/lab.py reproduce --out "$folder/pretended" table6 table7 figure4 gpt2 2>&1)
check "the pieces that need a GPU succeed on one GPU" $? "$said"
page=$(cat "$folder/pretended/reproduce.md")
has "the page's head names the GPU" "$page" '^\| GPU \| 1 x Pretended GPU, 1000 MiB, driver 1\.2\.3 \|$'
has "table 6 has a measured row of the paper's model" "$page" '^\| olmo \| 2048, 2048 \| coat \| 2\.88 → 1\.50 \(0\.52\) \| 5\.16 → 2\.50 \(0\.48\) \| 8\.04 → 4\.00 \(0\.50\) \| 1\.47 → 2\.50 \(1\.70\) \| 33456 \| 13\.80 → 8\.17 \(0\.59\) \| 1\.65 → 1\.97 \(1\.19\) \| measured \|$'
has "table 6 has a measured row of a recipe that the paper does not measure" "$page" '^\| olmo \| 2048, 2048 \| bf16 --recompute 2 \| 4\.00 \| 7\.00 \| 11\.00 \|'
has "table 6 has a measured row of another model's layer" "$page" '^\| llama2-7b \| 4096, 2048 \| bf16 \| 8\.00 \|.* \| measured \|$'
has "table 6 measures the paper's layer and layers of other models" "$(cat "$folder/pretended/bench_layer.log")" '^One layer, --quick --block olmo --model llama2-7b --model olmo-1b$'
has "a row of GPT-2 has the measured speed and memory" "$page" '^\| gpt2 \| 1 \| 1024 \| equal batch \| coat \| 64 \| 5242880 \| 1\.50 \| 0\.3 \| 9\.1 \| 5\.0 \| 5\.0 \| 2\.00 \| measured \|$'
has "table 7 has a measured row of the paper's model" "$page" '^\| llama2-7b \| 1 \| 2048 \| equal batch \| coat \| 1 \|.* \| measured \|$'
has "table 7: a row has the speed relative to measured BF16" "$page" '^\| llama2-7b \| 1 \| 2048 \| equal batch \| coat \|.* \| 2\.00 \| measured \|$'
has "table 7: two GPUs are planned on a machine with one" "$page" '^\| llama2-7b \| 2 \| 2048 \| equal batch \| coat \| 2 \| – \|.* \| planned, not measured \|$'
has "QUICK=1 plans the largest batches" "$page" '^\| gpt2 \| 1 \| 1024 \| largest in 80GB \| coat \| [0-9]+ \| – \|.*\| planned, not measured \|$'
has "QUICK=1 measures equal batches, also of 1558M" "$page" '^\| gpt2-xl \| 1 \| 1024 \| equal batch \| coat \| 16 \| [0-9].*\| measured \|$'
has "figure 4 has a measured row" "$page" '^\| 11008 x 16384 \| 1\.37 → 0\.137 \(0\.10\) \| 0\.10 → 0\.0050 \(0\.05\) \| 13\.7 → 27\.4 \(2\.00\) \| 0\.0040 \| measured \|$'

said=$(scripts/lab.py reproduce --dry-run --out "$folder/dry" table1 table7 2>&1)
has "--dry-run on a GPU trains OLMo-1B for table 1" "$said" '^.*train_gpt2_fp8 --model olmo-1b .*--batch-tokens 65536 .*--warmup 102 .*--beta2 0\.95 .*--steps 512 '
has "--dry-run on a GPU measures one of 16 groups" "$said" 'quant_error --every 16 '
has "--dry-run on a GPU narrows the tokens for Llama" "$said" 'narrow_tokens 32000 4194304 .* [^ ]*/dry/narrow\.bin'

said=$(MEMORY=81559 BIN=$folder/programs BUILD=$folder/programs QUICK=1 PAUSE=0 scripts/lab.py reproduce --out "$folder/h100" table7 2>&1)
check "table 7 on a GPU with 80 GB succeeds" $? "$said"
has "table 7: ratios of planned values are marked as planned" "$(cat "$folder/h100/reproduce.md")" '^\| llama2-7b \| 1 \| 2048 \| equal batch \| coat \|.* \| [0-9.]+, planned \| measured \|$'

# with four GPUs, measurements that need one GPU run on all four at the same time; measurements of several GPUs follow
: >"$folder/programs/gpus"
said=$(CUDA_VISIBLE_DEVICES=4,5,6,7 MPIRUN="mpirun-2 --bind-to none" BIN=$folder/programs BUILD=$folder/programs QUICK=1 scripts/lab.py reproduce --out "$folder/four" table6 table7 figure4 gpt2 2>&1)
check "the pieces that need a GPU succeed on four GPUs" $? "$said"
page=$(cat "$folder/four/reproduce.md")
has "the page says that four GPUs measured at the same time" "$page" '^Measurements that need one GPU ran on 4 GPUs at the same time'
has "table 7: a row of two GPUs is measured" "$page" '^\| llama2-7b \| 2 \| 2048 \| equal batch \| coat \| 2 \| 2621440 \|.* \| measured \|$'
has "table 7: a row of four GPUs is measured" "$page" '^\| llama2-13b \| 4 \| 2048 \| equal batch \| bf16 \| 1 \|.* \| measured \|$'
has "table 7: eight GPUs are planned on a machine with four" "$page" '^\| llama2-7b \| 8 \| 2048 \| equal batch \| coat \| 2 \| – \|.* \| planned, not measured \|$'
of_one() { grep -vE '^\| (date|command|took)|^[|].*\| [24] \| (1024|2048) \||^MODELS|^Measurements' "$folder/$1/reproduce.md" | cat -s; } # STUDY
is "apart from the rows of several GPUs, the page of four GPUs equals that of one" "$(of_one four)" "$(of_one pretended)"
[ "$(grep -c ^. "$folder/programs/gpus")" -gt 8 ] && [ "$(grep -xc '[4-7]' "$folder/programs/gpus")" -gt 2 ] && [ "$(grep -x '[4-7]' "$folder/programs/gpus" | sort -u | wc -l)" -gt 2 ] &&
    grep -qx 4,5 "$folder/programs/gpus" && grep -qx 4,5,6,7 "$folder/programs/gpus" && ! find "$folder/four" -name '.?*' ! -name .lock | grep -q .
check "measurements use separate GPUs, and leave no job files" $? "$(cat "$folder/programs/gpus"; ls -a "$folder/four")"

# a failed speed measurement is reported with its reason, also in its row, and the exit code is 1: on one GPU and on
# several
largest=$("$BIN/train_gpt2_fp8_cpu" --plan=json --model gpt2 --recipe coat --memory-limit 80GB | sed 's/.*"largest_micro_batch": \([0-9]*\).*/\1/')
pretend_speeds() { # OUT SETTING...: runs the piece gpt2
    env BIN="$folder/programs" BUILD="$folder/programs" PAUSE=0 "${@:2}" scripts/lab.py reproduce --out "$1" gpt2 2>&1
}
for gpus in 4 4,5; do
    out=$folder/speeds-$gpus
    said=$(pretend_speeds "$out" CUDA_VISIBLE_DEVICES=$gpus QUICK=1 FAILS='--recipe fp8-linear')
    [ $? -eq 1 ] && [ "$(grep -c "^failed: device memory: --recipe fp8-linear does not fit (see $out/speed-gpt2" <<<"$said")" -eq 2 ]
    check "failed speed measurements on GPU $gpus are reported, and the exit code is 1" $? "$said"
    page=$(cat "$out/reproduce.md")
    has "the page reports failed speed measurements" "$page" '^\*\*Failed\*\*, status 1: `.*MODELS=gpt2 .*scripts/measure\.sh .*a b_train\*. fp8-linear`: device memory: --recipe fp8-linear does not fit$'
    has "the row of a failed speed measurement has the planned values" "$page" '^\| gpt2 \| 1 \| 1024 \| equal batch \| fp8-linear \| 64 \| – \| – \| 1\.0 \| 15\.9 \| 19\.5 \| – \|.*\| \*\*failed\*\*: planned, not measured \|$'
    has "the other rows are measured" "$page" '^\| gpt2 \| 1 \| 1024 \| equal batch \| coat \| 64 \|.*\| measured \|$'
done
said=$(pretend_speeds "$folder/largest" MEMORY=81559 FAILS="--micro-batch $largest --batch")
[ $? -eq 1 ]
check "a largest batch that does not fit is a failure" $? "$said"
page=$(cat "$folder/largest/reproduce.md")
has "the page reports a largest batch that does not fit" "$page" "^\\*\\*Failed\\*\\*, status 1: .* MICRO_BATCH=$largest .*: device memory: --micro-batch $largest --batch does not fit\$"
has "the row of a largest batch that does not fit is marked" "$page" "^\\| gpt2 \\| 1 \\| 1024 \\| largest in 80GB \\| coat \\| $largest \\| – \\|.*\\*\\*failed\\*\\*"
has "the largest batches of other models are measured" "$page" '^\| gpt2-xl \| 1 \| 1024 \| largest in 80GB \| coat \|.*\| measured \|$'
has "larger batches are planned only if the GPU has the memory" "$(grep -c 141GB <<<"$page")" '^0$'
said=$(pretend_speeds "$folder/larger" MEMORY=143771 QUICK=1)
check "larger batches on a larger GPU succeed" $? "$said"
has "larger batches are on the page of a larger GPU" "$(cat "$folder/larger/reproduce.md")" '^\| gpt2 \| 1 \| 1024 \| largest in 141GB \| bf16 \| .* \| planned, not measured \|$'

# a stopped script stops the programs that it runs
printf '#!/bin/sh\necho $$ >>%s/running\nexec sleep 60\n' "$folder" >"$folder/programs/slow"
chmod +x "$folder/programs/slow"
mkdir "$folder/slow"
for program in train_gpt2_fp8 bench_layer_gpu bench_group_scaling_gpu; do ln -s ../programs/slow "$folder/slow/$program"; done
ln -s "$(realpath "$BIN/train_gpt2_fp8_cpu")" "$folder/slow/"
alive() {
    local id
    while read -r id; do
        if grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$id/status"; then return 0; fi
    done <"$folder/running"
    return 1
}
for gpus in 4 4,5; do
    count=$((1 + ${#gpus} / 3))
    rm -f "$folder/running"
    CUDA_VISIBLE_DEVICES=$gpus BIN=$folder/slow BUILD=$folder/slow scripts/lab.py reproduce --out "$folder/ended" table6 figure4 >/dev/null 2>&1 &
    script=$!
    wait_for $script started
    kill $script
    wait $script
    status=$?
    for ((i = 0; i < 50; i++)); do if alive; then sleep 0.1; else break; fi; done
    started && ! alive && [ $status -eq 143 ]
    check "a stopped script on GPU $gpus stops its programs and starts no more" $? "$status $(cat "$folder/running")"
done

rm -f "$folder/running"
count=1
CUDA_VISIBLE_DEVICES=4 BIN=$folder/slow BUILD=$folder/slow scripts/lab.py reproduce --out "$folder/ended" gpt2 >/dev/null 2>&1 &
script=$!
wait_for $script started
kill $script
wait $script
for ((i = 0; i < 50; i++)); do if alive; then sleep 0.1; else break; fi; done
started && ! alive
check "a stopped script stops a running speed measurement" $? "$(cat "$folder/running")"

printf '#!/bin/sh\necho "error: the GPU is lost"\nexit 3\n' >"$folder/programs/bench_layer_gpu"
said=$(BIN=$folder/programs BUILD=$folder/programs scripts/lab.py reproduce --out "$folder/failed" table6 figure4 2>&1)
[ $? -eq 1 ] && grep -q 'Failed.*the GPU is lost' "$folder/failed/reproduce.md" && grep -q '^| 11008 x 16384 .*measured' "$folder/failed/reproduce.md"
check "a failed piece is reported, and the others run" $? "$said"

# --- scripts/results/losses.md has the figures of the pages that it cites
rows_are_on() { # COUNT PATTERN PAGE...: COUNT rows of losses.md match, and their differences are on the pages
    local cells count=0
    while read -r cells; do
        count=$((count + 1))
        grep -qF -- "$cells" <(sed 's/ | within | / | /; s/ | beyond | / | /; s/ %//g' "${@:3}") || { echo "$cells"; return 1; }
    done < <(sed -n "/$2/s/^|[^|]*|[^|]*| \([+-].*\) |\$/\1/p" scripts/results/losses.md | sed 's/ %//g')
    [ $count -eq "$1" ] || { echo "$count rows"; return 1; }
}
said=$(rows_are_on 14 '^| `--recipe' scripts/results/fidelity-olmo-small/fidelity.md)
check "losses.md: the loss differences of each recipe are those of the cited page" $? "$said"
said=$(rows_are_on 8 '^| [0-9]*M tokens' scripts/results/fidelity{,-olmo-1b}/fidelity.md)
check "losses.md: the loss differences in windows are those of the cited pages" $? "$said"

# --- docs/coat.svg has the plan's figures: 14.75 C bytes per token and layer, plus FP32 sums
saved() { "$BIN/train_gpt2_fp8_cpu" --plan=json --layers "$1" --heads 16 --channels 2048 --seq-len 1024 --micro-batch 1 --recipe coat | sed 's/.*"saved": \([0-9]*\).*/\1/'; }
awk -v bytes=$(($(saved 2) - $(saved 1))) 'BEGIN { exit bytes != 1024 * (14.75 * 2048 + 16 + 4 * 16) }'
check "docs/coat.svg: a layer saves 14.75 C bytes per token" $? "$(($(saved 2) - $(saved 1)))"
python3 dev/tools/draw_coat.py "$folder/coat.svg" && cmp "$folder/coat.svg" docs/coat.svg
check "docs/coat.svg is the output of draw_coat.py" $?
python3 dev/tools/draw_results.py "$folder/results.svg" && cmp "$folder/results.svg" docs/results.svg
check "docs/results.svg has the figures of README.md and scripts/results" $?
exit $failures
