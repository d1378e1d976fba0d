# Sourced by stability.sh and fidelity.sh: many runs in one folder, several at a time, that a later start goes on with.
# shellcheck shell=bash disable=SC2034,SC2154 # variables of the script
. scripts/gpu.sh

stop() { echo "error: $1" >&2; exit 1; }

# A GPU's program and all GPUs where they can FP8, else the CPU's.
find_trainer() {
    trainer=$bin/train_gpt2_fp8_cpu gpus=()
    if has_fp8_gpu && [ -x "$bin/train_gpt2_fp8" ]; then
        trainer=$bin/train_gpt2_fp8
        mapfile -t gpus < <(list_gpus)
    fi
    jobs=${JOBS:-${#gpus[@]}}
    [ "$jobs" != 0 ] || jobs=1
}

check_numbers() { # "NAME VALUE"...
    local setting
    for setting in "$@"; do
        case ${setting#* } in '' | *[!0-9]*) stop "${setting% *}: not a number: ${setting#* }" ;; esac
    done
}

check_built() { # PROGRAM...
    local program
    for program in "$@"; do
        [ -n "$dry_run" ] || [ -x "$program" ] || stop "$program is not built: make ${program#./}"
    done
}

check_token_files() { # GLOB...
    local glob
    for glob in "$@"; do
        [ -n "$dry_run" ] || compgen -G "$glob" >/dev/null || stop "no file matches $glob: make token files with data/prepare.py, or correct the pattern"
    done
}

# What an earlier start trained with other settings does not belong together with this.
check_settings() { # FOLDER SETTINGS
    mkdir -p "$1"
    [ -e "$1/settings" ] || echo "$2" >"$1/settings"
    diff "$1/settings" - <<<"$2" >&2 || stop "$1 holds a study with other settings (<: its, >: these); choose another --out"
}

# Takes OUT for this study alone: `work` is a folder that goes with it, and a signal ends what runs.
begin_work() {
    failed='' workers=() work=$out/.work
    [ -z "$dry_run" ] || return 0
    mkdir -p "$out"
    exec 9>"$out/.lock" # what the study runs holds it too
    flock -n 9 || stop "another study is at work in $out"
    rm -rf "$out"/.work-*
    work=$(mktemp -d "$out/.work-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    # shellcheck disable=SC2086 # no child, no word
    trap 'stopped=yes; kill -TERM "${workers[@]}" $child 2>/dev/null || true' TERM INT HUP
}

# What the model of bytes reads: OUT/text_train.bin and OUT/text_val.bin.
prepare_text() {
    local text=(--headers)
    [ -z "${TEXT:-}" ] || text=("$TEXT")
    [ ! -e "$out/text_val.bin" ] || return 0
    run "$out/text.log" "$build/prepare_bytes" "${text[@]}" --overwrite --out "$out/text" || stop "text: $(tail -n 1 "$out/text.log")"
}

# A trapped signal ends a wait, but not what is waited for.
await() { # PROCESS: its exit status
    local status=0
    wait "$1" || status=$?
    while kill -0 "$1" 2>/dev/null; do
        status=0
        wait "$1" || status=$?
    done
    return $status
}

stopped='' child=''
# run LOG COMMAND...: its exit status. In a dry run, prints the command. A signal to the study reaches what it runs.
run() {
    local log=$1 status=0
    shift
    if [ -n "$dry_run" ]; then
        printf '%q ' "$@"
        echo
        return
    fi
    "$@" >"$log" 2>&1 </dev/null &
    child=$!
    await "$child" || status=$?
    child=''
    return $status
}

failure() { # WHAT STATUS LOG: told, and the others go on
    [ -n "$stopped" ] || echo "failed: $1, status $2: $(grep -m 1 '^error: ' "$3" || tail -n 1 "$3") (see $3)" >&2
    return 1
}

# Each item is given to FUNCTION, by as many processes as JOBS says; with several GPUs, each on one of them.
work_through() { # FUNCTION ITEM...
    local function=$1 i
    shift
    if [ -n "$dry_run" ]; then
        for i in "$@"; do
            # shellcheck disable=SC2086 # an item's words are the function's arguments
            "$function" $i
        done
        return
    fi
    workers=()
    for ((i = 0; i < jobs; i++)); do
        work_on "$i" "$function" "$@" &
        workers+=($!)
    done
    for i in "${workers[@]}"; do await "$i" || failed=yes; done
    workers=()
    [ -z "$stopped" ] || { echo "stopped; the same command goes on from here" >&2; exit 1; }
}
work_on() { # NUMBER FUNCTION ITEM...
    local function=$2 item bad='' number=0
    worker=$1
    [ ${#gpus[@]} -lt 2 ] || export CUDA_VISIBLE_DEVICES=${gpus[$1 % ${#gpus[@]}]}
    trap '' INT HUP # the study hands them on as TERM, once
    trap 'stopped=yes; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || true' TERM
    for item in "${@:3}"; do
        number=$((number + 1))
        if [ -n "$stopped" ] || ! mkdir "$work/$function-$number" 2>/dev/null; then continue; fi # another's
        # shellcheck disable=SC2086 # words
        "$function" $item || bad=yes
    done
    [ -z "$bad" ]
}
