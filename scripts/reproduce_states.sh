# Sourced by reproduce.sh: table 2, on the optimizer's states of a run in BF16, where they are FP32.
# shellcheck shell=bash disable=SC2154 # what reproduce.sh has set

model_name='' model=()

choose_model() {
    if [ -n "$real_text" ]; then
        model_name="GPT-2 124M, $((tokens / 1000000)) M tokens, one $(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)"
        model=(--model gpt2 --train "$train" --micro-batch 64 --batch-tokens 65536 --steps $(((tokens + 65535) / 65536)) --lr 6e-4 --warmup 100)
        return
    fi
    local steps=${STEPS:-400} text=(--headers)
    [ -z "${TEXT:-}" ] || text=("$TEXT")
    model_name="bytes, 4 layers of 128 channels, $((steps * 1024 / 1000)) thousand tokens"
    model=(--tokenizer bytes --layers 4 --heads 4 --channels 128 --seq-len 128 --micro-batch 8 --train "$out/text_train.bin"
        --steps "$steps" --lr 4e-3 --warmup 50)
    run text.log "$build/prepare_bytes" "${text[@]}" --overwrite --out "$out/text"
}

measure_error() { # of the last checkpoint
    local checkpoint=$out/bf16/step-LAST
    [ -n "$model_name" ] || choose_model || return
    # shellcheck disable=SC2046 # the flags are words
    run train-bf16.log "$trainer" "${model[@]}" $(recipe_flags bf16) --schedule cosine --lr-final 0.1 --weight-decay 0.1 --seed 1 \
        --sample-tokens 0 --quiet --out "$out/bf16" --overwrite || return
    [ -n "$dry_run" ] || checkpoint=$(find "$out/bf16" -maxdepth 1 -name 'step-*' | sort | tail -n 1)
    run quant_error.log "$build/quant_error" "$checkpoint" "$out/ranges.svg"
}

quant_error() {
    say "## Quantisation error of the optimizer's states (table 2)"
    measure_error || return
    [ -z "$dry_run" ] || return 0
    say "Error of m/√v after both moments were quantised in groups of 128, relative to plain E4M3 for both (the paper's 20.10 is of no stated unit). From the states of a run in BF16: $model_name. What expansion gains depends on the spread of the states within a group, printed below."
    awk '$1 ~ /^(E4M3|E5M2|DE8)/ && NF == 6 { print "formats", $0 } $1 ~ /^(E4M3|E5M2|DE8)/ && NF == 7' "$out/quant_error.log" >"$out/table2.txt"
    table table2 "$out/table2.txt"
    # shellcheck disable=SC2016 # Markdown
    printf '```\n%s\n```\n\n' "$(tail -n 3 "$out/quant_error.log" | grep .)" >>"$page"
}

piece_quant-error() { quant_error; }
piece_table2() { quant_error && say "![Dynamic ranges and exponents](ranges.svg)"; }
