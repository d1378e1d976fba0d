# Sourced by reproduce.sh: training, for its loss and its optimizer states.
# shellcheck shell=bash disable=SC2154 # what reproduce.sh has set

[[ ${SEEDS:-1} =~ ^\ *[0-9]+(\ +[0-9]+)*\ *$ ]] || stop "SEEDS: whole numbers with spaces between, not '$SEEDS'"
[[ ${BETA2:-0.95} =~ ^0\.[0-9]+$ ]] || stop "BETA2: a number below 1, as 0.999, not '$BETA2'"
[[ ${RATE:-1} =~ ^[0-9]*\.?[0-9]+(e-[0-9]+)?$ ]] || stop "RATE: a learning rate, as 2e-4, not '$RATE'"
read -ra seeds <<<"${SEEDS:-1}"

model_name='' model=()

choose_model() {
    if [ -n "$real_text" ]; then
        model_name="GPT-2 124M, $((tokens / 1000000)) M tokens, one $(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)"
        model=(--model gpt2 --train "$train" --val "$val" --micro-batch 64 --batch-tokens 65536 --steps $(((tokens + 65535) / 65536))
            --lr "${RATE:-6e-4}" --warmup 100 --lr-final 0.1 --beta2 "${BETA2:-0.95}" --weight-decay 0.1 --val-batches 20)
        return
    fi
    local steps=${STEPS:-400} text=(--headers)
    [ -z "${TEXT:-}" ] || text=("$TEXT")
    model_name="bytes, 4 layers of 128 channels, $((steps * 1024 / 1000)) thousand tokens"
    model=(--tokenizer bytes --layers 4 --heads 4 --channels 128 --seq-len 128 --micro-batch 8 --train "$out/text_train.bin" --val "$out/text_val.bin"
        --steps "$steps" --lr "${RATE:-4e-3}" --warmup 50 --lr-final 0.1 --beta2 "${BETA2:-0.95}" --weight-decay 0.1 --val-batches 40)
    run text.log "$build/prepare_bytes" "${text[@]}" --out "$out/text"
}

# Where a run is under OUT; of the first seed it has the recipe's name alone.
run_of() { # RECIPE SEED
    if [ "$2" = "${seeds[0]}" ]; then echo "$1"; else echo "$1-seed-$2"; fi
}

train_recipe() { # RECIPE [SEED]
    local seed=${2:-${seeds[0]}} name
    name=$(run_of "$1" "$seed")
    [ -n "$model_name" ] || choose_model || return 1
    # shellcheck disable=SC2046 # the flags are words
    run "train-$name.log" "$trainer" "${model[@]}" $(recipe_flags "$1") --schedule cosine --seed "$seed" --val-every 250 --sample-tokens 0 --quiet --out "$out/$name" --overwrite
}

val_loss() { # RECIPE SEED
    sed -n 's/.*"val_loss":\([0-9.]*\).*/\1/p' "$out/$(run_of "$1" "$2")/log.jsonl" | tail -n 1
}

parts=(bf16+products bf16+saved bf16+moments bf16+plain-moments)

# The jobs of `loss` and `parts`; BF16 with the first seed is a part of measure_error where that runs, too.
list_trainings() { # " PIECE... "
    local seed recipe recipes=()
    case $1 in *" loss "* | *" parts "*) recipes=(bf16 coat) ;; esac
    case $1 in *" parts "*) recipes+=("${parts[@]}") ;; esac
    for seed in "${seeds[@]}"; do
        for recipe in "${recipes[@]}"; do
            case "$recipe $seed $1" in "bf16 ${seeds[0]} "*" table2 "* | "bf16 ${seeds[0]} "*" quant-error "*) continue ;; esac
            echo train_recipe "$recipe" "$seed"
        done
    done
}

seeds_note() {
    if [ ${#seeds[@]} -gt 1 ]; then
        echo "Each difference is that of one seed; behind ± the standard error of their mean."
    else
        echo "One seed each: two seeds of a small model of bytes have differed by 1 %, the differences of GPT-2 124M over 100 M tokens scatter by 0.4 %."
    fi
}

piece_loss() {
    local seed
    say "## Loss" "The paper: training loss; here: validation loss, on text that was held out. $(seeds_note)"
    for seed in "${seeds[@]}"; do
        train_recipe bf16 "$seed" && train_recipe coat "$seed" || return
    done
    local bf16='...' curves='[COAT](loss-coat.svg) (dashed: BF16 at the end), [BF16](loss-bf16.svg)'
    [ -n "$dry_run" ] || bf16=$(val_loss bf16 "${seeds[0]}")
    run plot-coat.log "$build/plot_loss" "$out/coat/log.jsonl" "$out/loss-coat.svg" --title "COAT: $model_name" --ref "BF16=$bf16" || return
    run plot-bf16.log "$build/plot_loss" "$out/bf16/log.jsonl" "$out/loss-bf16.svg" --title "BF16: $model_name" || return
    if python3 -c 'import matplotlib' 2>/dev/null; then
        run plot.log python3 scripts/plot.py "BF16=$out/bf16" "COAT=$out/coat" --out "$out/loss" && curves="[both](loss.svg), $curves"
    fi
    [ -z "$dry_run" ] || return 0
    for seed in "${seeds[@]}"; do
        echo "${model_name// /_}$([ ${#seeds[@]} -eq 1 ] || echo ",_seed_$seed") $(val_loss bf16 "$seed") $(val_loss coat "$seed")"
    done >"$out/loss.txt"
    table loss "$out/loss.txt"
    say "Curves$([ ${#seeds[@]} -eq 1 ] || echo ", seed ${seeds[0]}"): $curves"
}

piece_parts() {
    local seed recipe
    say "## COAT by parts" "Validation loss of $model_name, and what it differs from BF16's. $(seeds_note)"
    for seed in "${seeds[@]}"; do
        for recipe in bf16 "${parts[@]}" coat; do train_recipe "$recipe" "$seed" || return; done
    done
    [ -z "$dry_run" ] || return 0
    {
        echo "seeds ${seeds[*]}"
        for recipe in bf16 "${parts[@]}" coat; do
            printf '%s' "$recipe"
            for seed in "${seeds[@]}"; do printf ' %s' "$(val_loss "$recipe" "$seed")"; done
            echo
        done
    } >"$out/parts.txt"
    table parts "$out/parts.txt"
}
