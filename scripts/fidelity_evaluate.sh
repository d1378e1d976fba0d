# Sourced by fidelity.sh: the last checkpoint of a run is evaluated in the recipes of EVALUATE on the validation text, and
# in the run's own recipe on each of TEXTS.
# shellcheck shell=bash disable=SC2034,SC2154 # variables of the script

# TEXTS: their names in `texts`, their files in glob_of[NAME].
texts=()
declare -A glob_of=()
read_texts() {
    local word name words=()
    read -r -d '' -a words <<<"${TEXTS:-}" || true
    TEXTS=${words[*]}
    for word in "${words[@]}"; do
        [[ $word =~ ^[A-Za-z0-9_.+-]+=.+$ ]] || stop "TEXTS: $word: not NAME=GLOB, with a name of letters, digits and _ . + -"
        name=${word%%=*}
        [ -z "${glob_of[$name]:-}" ] || stop "TEXTS: $name: two texts of this name"
        texts+=("$name")
        glob_of[$name]=${word#*=}
    done
}

check_texts() { # SETTING: each has a micro-batch at least
    local name tokens
    load_setting "$1"
    for name in "${texts[@]}"; do
        if ! compgen -G "${glob_of[$name]}" >/dev/null; then
            [ -n "$dry_run" ] || stop "TEXTS: $name: no file matches ${glob_of[$name]}: make token files with data/prepare.py, or correct the pattern"
            continue
        fi
        tokens=$(tokens_of "${glob_of[$name]}")
        [ "$tokens" -ge $((micro_batch * length)) ] || stop "TEXTS: $name: too short for $1, whose micro-batches read $((micro_batch * length)) tokens"
    done
}

# Tokens that can be read, but where they have 4 bytes: there the trainer reads all there are.
tokens_of() { # GLOB
    local files
    files=$(compgen -G "$1" | wc -l || true)
    echo $(($(bytes_of "$1") / 2 - files * (512 + length)))
}

# All runs of a setting are evaluated on the same tokens, which its own micro-batches and smaller ones fill.
val_batches() { # MICRO_BATCH GLOB
    local available tokens=$val_tokens batches
    available=$(tokens_of "$2")
    if [ "$available" -lt "$tokens" ] && compgen -G "$2" >/dev/null; then tokens=$available; fi
    batches=$((tokens / (micro_batch * length))) # of the setting's micro-batch
    echo $((batches > 0 ? batches * (micro_batch / $1) : 1))
}

# To the end; where EVALUATE or TEXTS ask for its last checkpoint, with that.
is_trained() { # FOLDER
    [ -n "$(val_loss "$1/log.jsonl")" ] && { [ $((${#evaluations[@]} + ${#texts[@]})) -eq 0 ] || [ -e "$1/$(step_folder "$steps")" ]; }
}

# A checkpoint's loss on token files: `loss`.
evaluate_checkpoint() { # WHAT LOG CHECKPOINT RECIPE MICRO_BATCH GLOB
    local status=0
    [ -z "$stopped" ] || return 1
    # shellcheck disable=SC2046 # words
    run "$2" "$trainer" --eval-only --model "$3" $(recipe_flags "$4") --micro-batch "$5" --val "$6" \
        --val-batches "$(val_batches "$5" "$6")" --quiet --json || status=$?
    [ -z "$dry_run" ] || return 0
    loss=$(val_loss "$2")
    [ -n "$loss" ] || failure "$1" $status "$2"
}

# What a run's last checkpoint has: `evaluated`, "RECIPE=LOSS ...", and the lines `on_texts` of its result.
evaluate() { # SETTING RECIPE SEED[@MICRO_BATCH]
    local folder=$out/$1/$2/$3 checkpoint name cut=$micro_batch loss=''
    checkpoint=$folder/$(step_folder "$steps")
    evaluated='' on_texts=()
    [[ $3 != *@* ]] || cut=${3#*@}
    for name in "${evaluations[@]}"; do
        evaluate_checkpoint "$1, $2, seed $3, evaluated in $name" "$folder/evaluated-$name.txt" "$checkpoint" "$name" "$cut" "$val_files" || return
        evaluated+=" $name=$loss"
    done
    for name in "${texts[@]}"; do
        evaluate_checkpoint "$1, $2, seed $3, on $name" "$folder/text-$name.txt" "$checkpoint" "$2" "$cut" "${glob_of[$name]}" || return
        on_texts+=("$1 $2 $3 text $name $loss")
    done
}

# A run that ended before EVALUATE or TEXTS had a name is not trained again for it: its checkpoint is gone.
tell_what_is_missing() {
    local run result name
    declare -A missing=()
    for run in "${runs[@]}"; do
        [ -s "$out/${run// //}/result" ] || continue
        result=" $(tr '\n' ' ' <"$out/${run// //}/result")"
        [[ $result == " $run done "* ]] || continue
        for name in "${evaluations[@]}"; do [[ $result == *" $name="* ]] || missing["in $name"]+=", $run"; done
        for name in "${texts[@]}"; do [[ $result == *" text $name "* ]] || missing["on $name"]+=", $run"; done
    done
    for name in "${!missing[@]}"; do
        echo "note: ended before, not evaluated $name: ${missing[$name]#, }; their checkpoints are gone, another --out trains them again"
    done | sort >&2
}
