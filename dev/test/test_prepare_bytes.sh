#!/usr/bin/env bash
# Tests prepare_bytes: its tokens, ignored files, the validation split, and errors for bad input.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. dev/test/program_fixture.sh
program=$(realpath "$build/prepare_bytes")
cd "$folder" || exit

# tokens FILE: prints the tokens as decimal numbers, one per line
# header FILE: prints the first three words of the header: magic, version and number of tokens
tokens() { od -An -v -t u2 -w2 -j 1024 "$1" | tr -d ' '; }
header() { od -An -t d4 -N 12 "$1" | tr -s ' '; }
texts() { # prints the documents of a file, with @ for the end-of-text token
    tokens "$1" | awk '{ if ($1 == 256) printf "@"; else printf "%c", $1 }'
}
refused() { # CODE WORDS ARGUMENTS...: checks that prepare_bytes ends with exit code CODE and one error line that contains WORDS
    local code=$1 words=$2 status=0
    shift 2
    "$program" "$@" >out 2>err || status=$?
    [ $status -eq "$code" ] && grep -q -- "$words" err && [ "$(wc -l <err)" -eq 1 ] && return
    echo "status $status: $(cat err)"
    return 1
}

# Many small files in folders, one of them twice, and files that must be ignored.
mkdir -p in/a/b in/.hidden
for i in $(seq 1 40); do printf 'file %s: %0*d\n' "$i" $((i % 7 + 20)) "$i" >"in/a/$i.txt"; done
mv in/a/3?.txt in/a/b
cp in/a/7.txt in/again.h
printf 'a\0b' >in/binary
: >in/empty
echo secret >in/.hidden/x
echo secret >in/.secret
ln -s .. in/a/loop
ln -s nowhere in/a/dangling

folder_of_files() {
    "$program" --out new/folders/t --val-fraction 0.2 in >out || return 1
    grep -q "from 40 files" out && grep -q "1 equal, 1 binary, 0 large" out || return 1
    [ "$(header new/folders/t_train.bin)" = " 20240520 1 $(tokens new/folders/t_train.bin | wc -l)" ] || return 1
    # checks that every file is complete and occurs once, in one of the two outputs
    { texts new/folders/t_train.bin; texts new/folders/t_val.bin; } | tr @ '\n' | sed '/^$/d' | sort >got
    cat in/a/*.txt in/a/b/*.txt | sort >expected
    cmp got expected || return 1
    [ "$(tokens new/folders/t_train.bin | grep -c '^256$')" -ge 30 ] && [ "$(tokens new/folders/t_val.bin | grep -c '^256$')" -ge 3 ]
}
succeeds "a folder: each text is complete and occurs once, some are for validation" folder_of_files

repeats_itself() {
    mkdir twice
    yes 'a line that comes again and again' | head -c 2500000 >twice/a.txt
    cp twice/a.txt twice/b.txt
    seq 1 300000 >twice/c.txt
    "$program" --out twice1 twice >out && grep -q "ignored: 1 equal" out || return 1
    [ $(($({ tokens twice1_train.bin; tokens twice1_val.bin; } | grep -vc '^256$'))) -eq $((2500000 + $(wc -c <twice/c.txt))) ]
}
succeeds "a large file of equal lines is read completely, and its copy is ignored" repeats_itself

same_whatever_the_order() {
    mkdir other && cp in/a/b/* in/a/*.txt other
    for file in other/*; do mv "$file" "other/x$((RANDOM))_$(basename "$file")"; done
    "$program" --out t2 --val-fraction 0.2 other >out || return 1
    cmp new/folders/t_train.bin t2_train.bin && cmp new/folders/t_val.bin t2_val.bin
}
succeeds "the output depends only on the contents" same_whatever_the_order

one_file() {
    seq 1 2000 >one.txt
    printf '\303\251\377' >>one.txt
    "$program" --out one --val-fraction 0.1 one.txt >out && grep -q " from 1 file (its end held out)" out || return 1
    [ "$(tokens one_train.bin | head -1) $(tokens one_val.bin | head -1)" = "256 256" ] || return 1
    # checks that both parts together are the text, divided at a line end
    { tokens one_train.bin | tail -n +2; tokens one_val.bin | tail -n +2; } >got
    od -An -v -t u1 -w1 one.txt | tr -d ' ' >expected
    cmp got expected || return 1
    [ "$(tokens one_train.bin | tail -1)" = 10 ] && [ "$(tokens one_val.bin | wc -l)" -lt 1000 ]
}
succeeds "a single file: its end is for validation" one_file

limit() {
    "$program" --out few --max-bytes 500 --val-fraction 0 in >out || return 1
    [ ! -e few_val.bin ] && [ "$(tokens few_train.bin | grep -vc '^256$')" -le 500 ] && grep -q "beyond --max-bytes" out
}
succeeds "--max-bytes limits the text, and --val-fraction 0 writes no validation file" limit

# Files over 1 MB in a folder are cut into pieces, at line ends if there are any. Every byte is in one of the two
# outputs, and some pieces are for validation.
large_files() {
    mkdir -p large/deep && seq 1 200000 >large/deep/numbers && seq 1 250000 | tr '\n' , >large/line && echo small >large/small
    { seq 1 300000 && printf '\0'; } >large/binary
    "$program" --out large/t large >out 2>err || return 1
    grep -q "texts, with the pieces of 2 files over 1 MB (.* 1 binary, 0 large" out && [ "$(cat err)" = "note: ignored files: 1 binary or in UTF-16 (large/binary)" ] || { cat out err; return 1; }
    texts large/t_train.bin | tr @ '\n' >got.train && texts large/t_val.bin | tr @ '\n' >got.val
    cat got.train got.val | grep -v , | grep -v '^$' | grep -v small | sort -n | cmp - large/deep/numbers || return 1
    [ "$(cat got.train got.val | tr -dc , | wc -c)" -eq 250000 ] || return 1
    [ "$(tr -dc '0-9' <got.val | wc -c)" -gt 10000 ] && [ "$(tokens large/t_val.bin | wc -l)" -lt 150000 ] || return 1
    "$program" --out large/again large >out && cmp large/t_train.bin large/again_train.bin && cmp large/t_val.bin large/again_val.bin
}
succeeds "large files in a folder are cut into pieces" large_files

# Large files in a folder are cut into pieces. If such a file is also named on the command line, its pieces must not be
# in both outputs.
named_and_in_a_folder() {
    mkdir -p both/in && seq 1 200000 >both/in/numbers && cp both/in/numbers both/copy
    "$program" --out both/alone both/in >out && "$program" --out both/t both/in/numbers both/copy both/in >out || return 1
    grep -q "ignored: 2 equal" out && cmp both/t_train.bin both/alone_train.bin && cmp both/t_val.bin both/alone_val.bin
}
succeeds "a large file that is named on the command line and is in a folder counts once" named_and_in_a_folder

# Only --overwrite replaces earlier output. The training and the validation file are always of the same run.
overwrite() {
    "$program" --out old/t in >out && cp -r old old.before || return 1
    refused 2 "old/t_train.bin: exists" --out old/t in || return 1
    rm old/t_train.bin old.before/t_train.bin
    refused 2 "old/t_val.bin: exists" --out old/t --val-fraction 0 in || return 1
    diff -r old old.before || return 1
    "$program" --out old/t --overwrite one.txt >out && cmp old/t_train.bin new.train_train.bin && cmp old/t_val.bin new.train_val.bin || return 1
    "$program" --out old/t --overwrite --val-fraction 0 one.txt >out && [ ! -e old/t_val.bin ]
}
"$program" --out new.train one.txt >out
succeeds "earlier output is replaced only with --overwrite" overwrite

# notes TEXT ARGUMENTS...: checks that prepare_bytes succeeds and prints only TEXT on standard error ("": nothing)
notes() {
    "$program" --overwrite --out note "${@:2}" >out 2>err && [ "$(cat err)" = "$1" ] && return
    cat out err
    return 1
}
shares() { # LOW HIGH: checks that the validation fraction is from LOW to HIGH tenths of a percent
    local train val
    train=$(tokens note_train.bin | wc -l) val=$(tokens note_val.bin | wc -l)
    [ $((train + val)) -gt 0 ] && [ $((1000 * val)) -ge $(($1 * (train + val))) ] && [ $((1000 * val)) -le $(($2 * (train + val))) ] && return
    echo "$val of $((train + val))"
    return 1
}
says() { # PATTERN: checks that a line of the output matches
    grep -qE -- "$1" out && return
    cat out
    return 1
}
mkdir halves && seq 1 500 >halves/a && seq 501 1000 >halves/b
succeeds "files larger than the validation fraction print no note" notes "" halves
succeeds "files larger than the validation fraction: the end of one is for validation" says 'from 2 files \(the end of one held out\)'
succeeds "files larger than the validation fraction: the fraction is right" shares 45 60
mkdir quarters && seq 1 20000 >quarters/a && seq 1 900 >quarters/b
succeeds "a small file with a large one prints no note" notes "" quarters
succeeds "a small file with a large one: the validation fraction is right" shares 40 60
yes "a line of about a tenth of the text, without an end" | head -c 20000 | tr '\n' ' ' >line
for i in 1 2 3 4 5 6 7 8 9; do cat line && echo $i; done >lines
for tenths in 1 4 7 9; do
    "$program" --overwrite --out note --val-fraction 0.$tenths lines >out 2>err
    succeeds "--val-fraction 0.$tenths of long lines is right" shares $((100 * tenths - 10)) $((100 * tenths + 10))
done
seq 1 20000 >long.txt
echo short >short.txt
succeeds "a tiny file with a large one prints no note" notes "" long.txt short.txt
succeeds "a tiny file with a large one: the end of the large one is for validation, too" says 'from 2 files \(1 held out, and the end of another\)'
succeeds "a tiny file with a large one: the validation fraction is right" shares 45 60
# folders with one file of various sizes
for bytes in 3000 50000 1000000 1048577 1113823 1300000 1700000 2500000; do
    rm -rf alone && mkdir alone && seq 1 500000 | head -c $bytes >alone/text
    succeeds "a folder of $bytes bytes prints no note" notes "" alone
    succeeds "a folder of $bytes bytes: the validation fraction is right" shares 40 60
    succeeds "a folder of $bytes bytes: no byte is lost or duplicated" test "$({ tokens note_train.bin; tokens note_val.bin; } | grep -vc '^256$')" -eq $bytes
done
yes 'a line that comes again and again' | head -c 2500000 >repeated.txt
mkdir repeats && cp repeated.txt repeats
succeeds "identical texts print a note about the validation fraction" notes "note: 0.413 % of the text is held out for validation, because equal or tiny texts are not divided; add other text" repeats
succeeds "a large --val-fraction prints a note" notes "note: 40 % of the text is held out for validation, as --val-fraction asks" --val-fraction 0.4 one.txt
printf x >tiny.txt
succeeds "a text of one byte prints a note with its fraction" notes "note: 100 % of the text is held out for validation, because equal or tiny texts are not divided; add other text" tiny.txt
succeeds "a small --val-fraction prints no note" notes "" --val-fraction 0.19 one.txt

headers() {
    "$program" --headers --max-bytes 100000 --out h1 >out 2>err && "$program" --headers --max-bytes 100000 --out h2 >out 2>err || return 1
    cmp h1_train.bin h2_train.bin && cmp h1_val.bin h2_val.bin && [ "$(tokens h1_train.bin | wc -l)" -gt 50000 ]
}
if [ -e /usr/include/stdio.h ]; then succeeds "--headers finds text, and the same text in a second run" headers; else echo "skip - --headers finds text: no /usr/include/stdio.h"; fi

succeeds "no temporary files are left" test -z "$(find . -name '*.tmp*')"
succeeds "a missing --out is refused" refused 1 "--out is missing" in
succeeds "no input is refused" refused 1 "no input" --out x
succeeds "--max-bytes below every text is refused" refused 2 "--max-bytes 10: " --out x --max-bytes 10 one.txt
succeeds "an unknown flag is refused" refused 1 "unknown flag --bogus" --out x --bogus in
succeeds "--val-fraction 2 is refused" refused 1 "--val-fraction: must be a number from 0 to 0.9, not 2" --out x --val-fraction 2 in
succeeds "--out that ends in / is refused" refused 1 "^prepare_bytes: --out new/: " --out new/ in
succeeds "--out= without a value is refused" refused 1 "--out: needs a path" --out= in
succeeds "--val-fraction=x is refused" refused 1 "--val-fraction: must be a number from 0 to 0.9, not x" --out=x --val-fraction=x in
equals() {
    "$program" --out=eq --val-fraction=0.2 --max-bytes=0 in >out 2>err && cmp eq_train.bin new/folders/t_train.bin && cmp eq_val.bin new/folders/t_val.bin
}
succeeds "--FLAG=VALUE is accepted" equals
succeeds "ignored files are named" grep -qE '^note: ignored files: 1 binary or in UTF-16 \(in/binary\); 1 empty \(in/empty\); 2 hidden \(in/\.(hidden, in/\.secret|secret, in/\.hidden)\); 1 neither a file nor a folder \(in/a/dangling\)$' err
mkdir binaries && for i in 1 2 3 4 5; do printf 'a\0b' >binaries/$i; done
"$program" --out named --overwrite binaries one.txt >out 2>err
succeeds "a note names the first three ignored files" grep -qE '^note: ignored files: 5 binary or in UTF-16 \(binaries/[1-5], binaries/[1-5], binaries/[1-5], \.\.\.\)$' err
mkdir commands && printf 'a\0b' >$'commands/\033[2J\xc2\x9b2J'
"$program" --out $'named\033[2J' commands one.txt >out 2>err
succeeds "control characters in names of ignored files are escaped" grep -qF 'commands/?[2J?2J' err
succeeds "control characters in --out are escaped" grep -q '^named?\[2J: ' out

# Linked folders are read once. A note names links to outside the given folders.
linked() {
    mkdir -p links/in/a links/other && echo one >links/in/a/1 && echo two >links/other/2 && echo three >links/3
    ln -s .. links/in/a/up && ln -s a links/in/b
    "$program" --overwrite --out link --val-fraction 0 links/in >out 2>err && [ "$(texts link_train.bin)" = @one ] && [ ! -s err ] || return 1
    ln -s ../other links/in/c && ln -s ../in links/other/back && ln -s ../3 links/in/d
    "$program" --overwrite --out link --val-fraction 0 links/in >out 2>err && [ "$(texts link_train.bin | tr @ '\n' | sort | xargs)" = "one three two" ] &&
        grep -qE '^note: links to outside the given folders were followed: 2 links \(links/in/[cd], links/in/[cd]\)$' err
}
succeeds "linked folders are read once" linked
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 12345\n' 0 >links/other/pointer
succeeds "a Git LFS pointer in a folder is refused" refused 2 "^prepare_bytes: links/other/pointer: is a Git LFS pointer" --out x links/other
succeeds "a Git LFS pointer on the command line is refused" refused 2 "pointer: is a Git LFS pointer" --out x one.txt links/other/pointer
mkdir escapes && printf '\0' >"escapes/$(printf 'a\033[31m')" && printf '\0' >"escapes/$(printf 'b\nc')"
"$program" --out note --overwrite escapes one.txt >out 2>err
succeeds "escape sequences in file names do not reach the terminal" test "$(tr -d '\n[:print:]' <err | wc -c) $(wc -l <err)" = "0 1"
succeeds "--max-bytes 12MB is refused" refused 1 "--max-bytes: must be a number" --out x --max-bytes 12MB in
succeeds "--out without a value is refused" refused 1 "--out: needs a path" in --out
succeeds "a missing file is refused" refused 2 "absent.txt" --out x absent.txt
succeeds "a binary file on the command line is refused" refused 2 "in/binary: is not a readable text file" --out x in/binary
mkdir nothing
succeeds "a folder without text is refused" refused 2 "no text found" --out x nothing
succeeds "an output folder that cannot be made is refused" refused 2 "one.txt" --out one.txt/x one.txt
exit $failures
