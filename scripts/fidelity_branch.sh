# Sourced by fidelity.sh: with FROM, the baseline is trained once per seed to that step, and all runs of the seed go on
# from this checkpoint, OUT/branch-points/SETTING-from-STEP/SEED/step-..., whatever step they end at.
# shellcheck shell=bash disable=SC2034,SC2154 # variables of the script

point_folder() { echo "$out/branch-points/${1%-to-*}/$2"; } # SETTING SEED

# A run that has neither begun nor ended.
needs_branch_point() { # SETTING RECIPE SEED[@MICRO_BATCH]
    local folder=$out/$1/$2/$3
    [ ! -s "$folder/result" ] && ! compgen -G "$folder/step-*" >/dev/null && ! is_trained "$folder"
}

# Puts branch points, as "SETTING - SEED", among the runs: as many ahead as can be made at the same time.
with_branch_points() {
    awk -v ahead="$jobs" '
        {
            split($3, seed, "@")
            point = $1 " - " seed[1]
            if (!(point in number)) { number[point] = ++points; point_of[points] = point }
            runs[number[point]] = runs[number[point]] $0 "\n"
        }
        END {
            for (i = 1; i <= points + ahead; i++) {
                if (i > ahead) printf "%s", runs[i - ahead]
                if (i <= points) print point_of[i]
            }
        }'
}

# As run, but the command is told to end as soon as the function is true of the file; a dry run says so.
run_until() { # FUNCTION FILE LOG COMMAND...
    local reached=$1 file=$2 log=$3 status=0
    shift 3
    if [ -n "$dry_run" ]; then
        run "$log" "$@"
        echo "# ended at step $steps"
        return
    fi
    [ -z "$stopped" ] || return 1
    "$@" >"$log" 2>&1 </dev/null &
    child=$!
    tell_late
    while ! "$reached" "$file" && kill -0 "$child" 2>/dev/null; do sleep 0.1; done
    kill -TERM "$child" 2>/dev/null || true
    await "$child" || status=$?
    child=''
    return $status
}

is_saved() { [ -e "$1" ]; }                   # CHECKPOINT
is_validated() { [ -n "$(val_loss "$1")" ]; } # LOG: at its last step, which is saved before

# The checkpoint of exactly this step is what counts; the run may have gone on from there before it ended.
train_to_branch_point() { # SETTING SEED FOLDER CHECKPOINT
    local status=0 checkpoint
    echo "training $1: $baseline, seed $2, to step $from" >&2
    mkdir -p "$3"
    run_until is_saved "$4" "$3/output.txt" "${command[@]}" || status=$?
    if [ ! -e "$4" ]; then failure "$1, $baseline, seed $2, to step $from" $status "$3/output.txt" || return; fi
    for checkpoint in "$3"/step-*; do [ "$checkpoint" = "$4" ] || rm -rf "$checkpoint"; done
    is_the_same "$@" && return
    rm -rf "$4"
    echo "failed: $1, seed $2: trained again to step $from, $baseline is not what other runs went on from, as on another machine; choose another --out" >&2
    return 1
}

# Where it is made once more, for more recipes, it has the loss and gradient that the logs of earlier runs say.
is_the_same() { # SETTING SEED FOLDER
    [ "$(cat "$3/log.jsonl" "$out/$1"/*/"$2"/log.jsonl "$out/$1"/*/"$2"@*/log.jsonl 2>/dev/null |
        sed -n "s/^{\"step\":$from,\(\"loss\":[^,]*,\"grad_norm\":[^,}]*\).*/\1/p" | sort -u | wc -l)" -eq 1 ]
}

# The first who needs it makes it, the others wait.
make_branch_point() { # SETTING SEED
    local folder checkpoint command
    folder=$(point_folder "$1" "$2")
    checkpoint=$folder/$(step_folder "$from")
    set_command "$baseline" "$2" "$folder" "$from"
    if [ -n "$dry_run" ]; then
        run '' "${command[@]}"
        echo "# ended when it has saved step $from, from which the runs below go on"
        return
    fi
    {
        flock 7
        [ -n "$stopped" ] || [ -e "$checkpoint" ] || [ -e "$work/$1-$2.failed" ] ||
            train_to_branch_point "$1" "$2" "$folder" "$checkpoint" || : >"$work/$1-$2.failed"
    } 7>"$work/$1-$2.lock"
    [ -e "$checkpoint" ]
}

# A run's folder gets the checkpoint and the log up to there. Links will do: no checkpoint is written in place.
go_on_from_branch_point() { # SETTING RECIPE SEED[@MICRO_BATCH]
    local folder=$out/$1/$2/$3 point name copy=$work/copy-$1-$2-$3
    point=$(point_folder "$1" "${3%@*}")
    needs_branch_point "$@" || return 0
    make_branch_point "$1" "${3%@*}" || return
    name=$(step_folder "$from")
    cp -rl "$point/$name" "$copy" 2>/dev/null || { rm -rf "$copy" && cp -r "$point/$name" "$copy"; } || return
    awk -F'[:,}]' -v from="$from" '$2 + 0 <= from + 0' "$point/log.jsonl" >"$folder/log.jsonl" && mv "$copy" "$folder/$name"
}

branch_point_is_needed() { # SETTING SEED
    local run setting recipe seed
    for run in "${runs[@]}"; do
        read -r setting recipe seed <<<"$run"
        if [ "$setting ${seed%@*}" = "$1 $2" ] && [ "$recipe" != - ] && needs_branch_point "$setting" "$recipe" "$seed"; then return 0; fi
    done
    return 1
}
drop_branch_point() { # SETTING SEED
    local folder
    folder=$(point_folder "$@")
    [ -n "${KEEP_BRANCH_POINTS:-}" ] || branch_point_is_needed "$@" || rm -rf "$folder"/step-* "$folder"/events.*
}
