// Tests of the files of checkpoints (coat/save/checkpoint.h): the newest complete checkpoint is found, damage is
// detected and reported, and neither a failed save nor pruning loses a checkpoint.
#include "dev/test/checkpoint_run.h"

#include "coat/save/checkpoint_shards.h"
#include "coat/save/hf.h"
#include "coat/save/snapshot.h"

static Error err; // error of the last failed call

static char found[TEST_PATH];

static bool find(const char *out, int64_t step) {
    return checkpoint_find(path_of(out), step, found, sizeof found, &err);
}

UNIT_TEST(the_newest_or_a_given_checkpoint_is_found) {
    Run *run = run_new(RECIPE_COAT);
    assert_true(find("nothing", -1));
    assert_string_equal(found, "");
    assert_false(find("nothing", 5));
    assert_says(&err, "no checkpoint of step 5");
    for (int step = 8; step <= 12; step += 2) {
        RunState rs = fill(run, (uint64_t)step);
        rs.step = step;
        save(run, "find", &rs);
    }
    assert_int_equal(mkdir(path_of("find/step-99999999"), 0777), 0);
    assert_int_equal(mkdir(path_of("find/.step-00000050.tmp"), 0777), 0);
    write_text(path_of("find/step-00000060"), "not a folder");
    int kept = quiet_begin();
    bool good = find("find", -1);
    const char *said = quiet_end(kept);
    assert_true(good);
    assert_string_equal(found, path_of("find/step-00000012"));
    assert_non_null(strstr(said, "step-99999999"));
    assert_true(find("find", 8));
    assert_string_equal(found, path_of("find/step-00000008"));
    assert_false(find("find", 9));
    assert_says(&err, "no checkpoint of step 9");
    char tiny[8];
    assert_false(checkpoint_find(path_of("find"), 8, tiny, sizeof tiny, &err));
    run_close(run);
}

// Opens a run and saves checkpoints of steps 10 and 20 in the folder `out`. Sets *newer to the state of step 20.
static Run *run_with_two(const char *out, RunState *newer) {
    Run *run = run_new(RECIPE_COAT);
    RunState older = fill(run, 1);
    older.step = 10;
    save(run, out, &older);
    *newer = fill(run, 2);
    save(run, out, newer);
    return run;
}

// Tests that a checkpoint that cannot be read, or whose folder is named after another step, is an error. No older
// checkpoint is used instead.
UNIT_TEST(an_unreadable_or_misnamed_checkpoint_is_an_error) {
    RunState newer;
    Run *run = run_with_two("unread", &newer);
    const bool root = geteuid() == 0; // root can read files whatever their permissions
    assert_int_equal(chmod(path_of("."), 0755), 0);
    assert_int_equal(chmod(path_of("unread/step-00000020/model.safetensors"), 0), 0);
    if (root) assert_int_equal(seteuid(65534), 0);
    const bool newest = find("unread", -1), numbered = find("unread", 20);
    if (root) assert_int_equal(seteuid(0), 0);
    assert_false(newest || numbered);
    assert_says(&err, "cannot open");
    assert_int_equal(chmod(path_of("unread/step-00000020/model.safetensors"), 0644), 0);
    assert_int_equal(rename(path_of("unread/step-00000020"), path_of("unread/step-00000030")), 0);
    assert_false(find("unread", -1));
    assert_says(&err, "rename it to step-00000020");
    assert_false(find("unread", 30));
    assert_says(&err, "rename it to step-00000020");
    assert_true(find("unread", 10));
    run_close(run);
}

// Damages each file of a checkpoint in turn. Looking for that step must fail. Looking for the newest checkpoint must
// find the previous step and print a line that names the damaged file.
UNIT_TEST(the_checkpoint_before_a_damaged_one_is_found) {
    RunState newer;
    Run *run = run_with_two("damage", &newer);
    for (size_t i = 0; i < FILES; i++) {
        for (int kind = 0; kind < 4; kind++) {
            size_t size;
            const char *path = in(path_of("damage/step-00000020"), files[i]);
            char *data = read_file(path, &size);
            if (kind == 0) write_file(path, data, size - 1);
            if (kind == 1) flip_byte(path, size / 2);
            if (kind == 2) flip_byte(path, size - 2);
            if (kind == 3) assert_int_equal(unlink(path), 0);
            int kept = quiet_begin();
            bool good = find("damage", -1);
            const char *said = quiet_end(kept);
            assert_true(good);
            assert_string_equal(found, path_of("damage/step-00000010"));
            assert_non_null(strstr(said, "step-00000020"));
            assert_non_null(strstr(said, files[i]));
            assert_false(find("damage", 20));
            assert_error(&err, EXIT_DATA, files[i]);
            // Loading the damaged checkpoint must fail, unless loading does not read the damaged file.
            if (strcmp(files[i], "generation_config.json") != 0 && strcmp(files[i], HF_INDEX_NAME) != 0)
                assert_false(checkpoint_load(path_of("damage/step-00000020"), &run->arena, &run->exec, &newer, &err));
            write_file(path, data, size);
            free(data);
        }
    }
    assert_true(find("damage", 20)); // finds the checkpoint, because all of its files have been restored
    run_close(run);
}

UNIT_TEST(saving_replaces_a_checkpoint_and_prunes_old_ones) {
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 1), got;
    save(run, "prune", &rs);
    rs = fill(run, 2);
    rs.tokens = 5;
    // saves step 20 again, which replaces it
    if (!checkpoint_load(save(run, "prune", &rs), &run->arena, &run->exec, &got, &err)) fail_msg("%s", err.text);
    assert_int_equal(got.tokens, 5);
    for (int step = 21; step <= 24; step++) {
        rs.step = step;
        save(run, "prune", &rs);
    }
    assert_int_equal(unlink(path_of("prune/step-00000024/state.json")),
                     0); // damages step 24, which pruning must neither count nor delete
    write_text(path_of("prune/.step-00000030.tmp/model.safetensors"), "half");
    const char *const mine[] = {"prune/notes.txt", "prune/.step-notes.tmp", "prune/.step-00000020-good.old"};
    for (int i = 0; i < 3; i++) write_text(path_of(mine[i]), "mine");
    checkpoint_prune(path_of("prune"), 23, 0, 0);
    assert_true(path_is_folder(path_of("prune/step-00000020")));
    assert_false(path_is_folder(path_of("prune/.step-00000030.tmp")));
    write_text(path_of("prune/step-00000021/gguf/model.gguf"), "mine");
    checkpoint_prune(path_of("prune"), 23, 2, 10);
    assert_false(path_is_folder(path_of("prune/.step-00000021.old")));
    assert_true(path_is_folder(path_of("prune/step-00000020")));
    assert_false(path_is_folder(path_of("prune/step-00000021")));
    checkpoint_prune(path_of("prune"), 23, 1, 0);
    assert_false(path_is_folder(path_of("prune/step-00000020")));
    assert_false(path_is_folder(path_of("prune/step-00000022")));
    assert_true(path_is_folder(path_of("prune/step-00000023")));
    assert_true(path_is_folder(path_of("prune/step-00000024")));
    for (int i = 0; i < 3; i++) assert_true(path_is_file(path_of(mine[i])));
    // checkpoint_prepare() deletes an unfinished save (.tmp) to free space for the next save. It keeps a replaced
    // checkpoint (.old), which may be the only copy.
    write_text(path_of("prune/.step-00000031.tmp/model.safetensors"), "half");
    assert_int_equal(mkdir(path_of("prune/.step-00000032.old"), 0777), 0);
    assert_true(checkpoint_prepare(path_of("prune"), 33, &err));
    assert_false(path_is_folder(path_of("prune/.step-00000031.tmp")));
    assert_true(path_is_folder(path_of("prune/.step-00000032.old")));
    checkpoint_prune(path_of("prune"), 23, 0, 0);
    assert_false(path_is_folder(path_of("prune/.step-00000032.old")));
    // Before a resumed run saves, later checkpoints are renamed, so that they are neither found nor pruned.
    assert_true(checkpoint_rename_later(path_of("prune"), 23, true, &err));
    assert_false(path_is_folder(path_of("prune/step-00000024")));
    assert_true(path_is_folder(path_of("prune/damaged-1-step-00000024")));
    for (int number = 1; number <= 2; number++) {
        rs.step = 25;
        save(run, "prune", &rs);
        assert_true(checkpoint_rename_later(path_of("prune"), 23, false, &err));
        assert_false(path_is_folder(path_of("prune/step-00000025")));
        assert_true(path_is_folder(
            path_of(number == 1 ? "prune/abandoned-1-step-00000025" : "prune/abandoned-2-step-00000025")));
    }
    checkpoint_prune(path_of("prune"), 23, 1, 0);
    assert_true(path_is_folder(path_of("prune/step-00000023")));
    run_close(run);
}

// Prunes checkpoints as a user without root's permissions. Returns the number of lines that pruning prints.
static int prune_lines(const char *out, int64_t saved) {
    const int kept = quiet_begin();
    test_as_user(true);
    checkpoint_prune(out, saved, 1, 0);
    test_as_user(false);
    return occurrences(quiet_end(kept), "\n");
}

// Tests that a checkpoint that pruning cannot remove stays complete and is reported in one line.
UNIT_TEST(a_checkpoint_that_cannot_be_removed_stays_complete) {
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 1);
    for (int step = 20; step <= 23; step++) {
        rs.step = step;
        save(run, "forbidden", &rs);
    }
    const char *const parts[] = {"forbidden/step-00000020/part", "forbidden/step-00000021/part"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mkdir(path_of(parts[i]), 0777), 0);
        write_text(path_of(i == 0 ? "forbidden/step-00000020/part/a" : "forbidden/step-00000021/part/a"), "a");
        assert_int_equal(chmod(path_of(parts[i]), 0555), 0);
    }
    assert_int_equal(prune_lines(path_of("forbidden"), 22), 2);
    assert_int_equal(prune_lines(path_of("forbidden"), 23), 0);
    assert_false(path_is_folder(path_of("forbidden/step-00000022")));
    assert_true(find("forbidden", 20) && find("forbidden", 21));
    for (int i = 0; i < 2; i++) assert_int_equal(chmod(path_of(parts[i]), 0777), 0);
    assert_int_equal(prune_lines(path_of("forbidden"), 23), 0);
    assert_false(path_is_folder(path_of("forbidden/step-00000020")));
    assert_false(path_is_folder(path_of("forbidden/step-00000021")));
    run_close(run);
}

UNIT_TEST(a_failed_save_leaves_no_files) {
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 1);
    const char *folder = save(run, "fails", &rs);
    // If a vocabulary file is missing, a line reports the file, and the checkpoint is saved without it.
    rs = fill(run, 2);
    int kept = quiet_begin();
    assert_true(checkpoint_save(path_of("fails"), &run->arena, &run->exec, &rs, path_of("no-tokenizer.json"), &err));
    const char *said = quiet_end(kept);
    assert_non_null(strstr(said, "no-tokenizer.json"));
    assert_false(path_is_file(in(folder, "vocab.json")));
    assert_false(path_is_folder(path_of("fails/.step-00000020.tmp")));
    assert_true(find("fails", 20));
    // Saving must fail if the output folder is a file or inside a file, or if a file has the checkpoint's name.
    write_text(path_of("file"), "x");
    assert_false(checkpoint_save(path_of("file"), &run->arena, &run->exec, &rs, NULL, &err));
    assert_says(&err, "/file");
    assert_false(checkpoint_save(path_of("file/sub"), &run->arena, &run->exec, &rs, NULL, &err));
    assert_says(&err, "/file");
    write_text(path_of("taken/step-00000020"), "keep me");
    assert_false(checkpoint_save(path_of("taken"), &run->arena, &run->exec, &rs, NULL, &err));
    assert_says(&err, "step-00000020");
    assert_true(path_is_file(path_of("taken/step-00000020")));
    assert_false(path_is_folder(path_of("taken/.step-00000020.tmp")));
    run_close(run);
}

UNIT_TEST(checkpoints_contain_the_tokenizer_files) {
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 1);
    write_text(path_of("gpt2/encoder.json"), "{\"a\": 0}");
    write_text(path_of("gpt2/vocab.bpe"), "#version: 0.2\n");
    write_text(path_of("gpt2_tokenizer.bin"), "binary");
    write_text(path_of("llama/any.json"), "{\"version\": \"1.0\", \"truncation\": null}");
    write_text(path_of("llama/tokenizer_config.json"), "{}");
    write_text(path_of("llama/chat_template.jinja"), "{{ messages }}");
    write_text(path_of("any.model"), "\n\016\n\005<unk>");
    static const struct {
        const char *given, *copy, *original;
    } cases[] = {{"gpt2/encoder.json", "vocab.json", "gpt2/encoder.json"},
                 {"gpt2/encoder.json", "merges.txt", "gpt2/vocab.bpe"},
                 {"gpt2", "vocab.json", "gpt2/encoder.json"},
                 {"gpt2", "merges.txt", "gpt2/vocab.bpe"},
                 {"llama/any.json", "tokenizer.json", "llama/any.json"},
                 {"llama", "tokenizer_config.json", "llama/tokenizer_config.json"},
                 {"llama", "chat_template.jinja", "llama/chat_template.jinja"},
                 {"any.model", "tokenizer.model", "any.model"},
                 {"gpt2_tokenizer.bin", "gpt2_tokenizer.bin", "gpt2_tokenizer.bin"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *folder = path_of("tokenizers/step-00000020");
        if (!checkpoint_save(path_of("tokenizers"), &run->arena, &run->exec, &rs, path_of(cases[i].given), &err))
            fail_msg("%s", err.text);
        assert_same_files(in(folder, cases[i].copy), path_of(cases[i].original));
        assert_true(find("tokenizers", 20));
    }
    flip_byte(path_of("tokenizers/step-00000020/gpt2_tokenizer.bin"), 2);
    assert_false(find("tokenizers", 20));
    assert_says(&err, "gpt2_tokenizer.bin");
    run_close(run);
}

// Tests that a checkpoint contains a tokenizer_config.json (tokenizer class, BOS and EOS) even if there is none next to
// the tokenizer's file. Covers the tokenizers of all architectures.
UNIT_TEST(checkpoints_contain_a_tokenizer_config) {
    static const struct {
        const char *given, *says[5], *not ;
    } cases[] = {
        {"dev/test/tokenizers/qwen.json",
         {"\"PreTrainedTokenizerFast\"", "\"bos_token\": null", "\"eos_token\": \"<|endoftext|>\"", "\"input_ids\""},
         "add_bos_token"},
        {"dev/test/tokenizers/llama3.json",
         {"\"PreTrainedTokenizerFast\"", "\"bos_token\": \"<|begin_of_text|>\"", "\"eos_token\": \"<|end_of_text|>\"",
          "\"attention_mask\""},
         "unk_token"},
        {"dev/test/tokenizers/llama.model",
         {"\"PreTrainedTokenizerFast\"", "\"bos_token\": \"<s>\"", "\"eos_token\": \"</s>\"",
          "\"unk_token\": \"<unk>\"", "\"add_bos_token\": true"},
         "legacy"},
        {"pair/encoder.json",
         {"\"GPT2Tokenizer\"", "\"bos_token\": null", "\"eos_token\": \"<|endoftext|>\"",
          "\"unk_token\": \"<|endoftext|>\""},
         "add_bos_token"},
    };
    Run *run = run_new(RECIPE_BF16);
    RunState rs = fill(run, 1);
    write_text(path_of("pair/encoder.json"), "{\"a\": 0, \"<|endoftext|>\": 1}");
    write_text(path_of("pair/vocab.bpe"), "#version: 0.2\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *given = cases[i].given[0] == 'd' ? cases[i].given : path_of(cases[i].given);
        const char *first = path_of("configured/step-00000020");
        if (!checkpoint_save(path_of("configured"), &run->arena, &run->exec, &rs, given, &err))
            fail_msg("%s", err.text);
        const char *text = contents(in(first, "tokenizer_config.json"));
        for (int k = 0; k < 5 && cases[i].says[k]; k++)
            if (!strstr(text, cases[i].says[k])) fail_msg("%s lacks %s:\n%s", given, cases[i].says[k], text);
        assert_null(strstr(text, cases[i].not ));
        assert_true(find("configured", 20)); // verifies tokenizer_config.json, too, which the manifest lists
        const char *second = path_of("again/step-00000020");
        // A save after a resume copies tokenizer_config.json from the checkpoint.
        assert_true(checkpoint_save(path_of("again"), &run->arena, &run->exec, &rs, first, &err));
        assert_same_files(in(second, "tokenizer_config.json"), in(first, "tokenizer_config.json"));
        if (strstr(given, ".model")) assert_same_files(in(second, "tokenizer.json"), in(first, "tokenizer.json"));
    }
    assert_true(
        checkpoint_save(path_of("configured"), &run->arena, &run->exec, &rs, path_of("gpt2_tokenizer.bin"), &err));
    // transformers has no class for this tokenizer, so there is no tokenizer_config.json.
    assert_false(path_is_file(path_of("configured/step-00000020/tokenizer_config.json")));
    run_close(run);
}

static char loaded_algos[64]; // text last passed to algos_load(); "": none

static char *fake_algos_text(Exec *exec) {
    (void)exec;
    return strdup("a row\n");
}

static void fake_algos_load(Exec *exec, const char *text) {
    (void)exec;
    snprintf(loaded_algos, sizeof loaded_algos, "%s", text);
}

// Tests the GEMM algorithm cache of checkpoints (matmul_table.txt). Only a device with a cache saves and loads the
// file; every device verifies it.
UNIT_TEST(checkpoints_contain_the_gemm_algorithm_table) {
    Run *run = run_new(RECIPE_COAT);
    RunState rs = fill(run, 1);
    // A checkpoint without matmul_table.txt, as CPU runs and earlier versions save.
    const char *plain = save(run, "no-algos", &rs);
    assert_false(path_is_file(in(plain, "matmul_table.txt")));
    run->ops.algos_text = fake_algos_text;
    const char *folder = save(run, "algos", &rs), *table = in(folder, "matmul_table.txt");
    size_t size;
    char *text = read_file(table, &size);
    assert_string_equal(text, "a row\n");
    assert_same_files(in(folder, "model.safetensors"), in(plain, "model.safetensors"));
    assert_same_files(in(folder, "state.json"), in(plain, "state.json"));
    assert_true(find("algos", -1));
    // A device without GEMM algorithm cache verifies matmul_table.txt but does not load it.
    assert_true(checkpoint_load(folder, &run->arena, &run->exec, &rs, &err));
    assert_string_equal(loaded_algos, "");
    run->ops.algos_load = fake_algos_load;
    assert_true(checkpoint_load(folder, &run->arena, &run->exec, &rs, &err));
    assert_string_equal(loaded_algos, "a row\n");
    // matmul_table.txt is ignored if the manifest does not list it.
    loaded_algos[0] = 0;
    write_text(in(plain, "matmul_table.txt"), "another");
    assert_true(checkpoint_load(plain, &run->arena, &run->exec, &rs, &err));
    assert_string_equal(loaded_algos, "");
    for (int kind = 0; kind < 3; kind++) {
        if (kind == 0) flip_byte(table, 2);
        if (kind == 1) write_file(table, text, size - 1);
        if (kind == 2) assert_int_equal(unlink(table), 0);
        int kept = quiet_begin();
        assert_false(find("algos", -1));
        quiet_end(kept);
        assert_false(find("algos", 20));
        assert_says(&err, "matmul_table.txt");
        assert_false(checkpoint_load(folder, &run->arena, &run->exec, &rs, &err));
        assert_says(&err, "matmul_table.txt");
        assert_string_equal(loaded_algos, "");
        write_file(table, text, size);
    }
    assert_true(checkpoint_load(folder, &run->arena, &run->exec, &rs, &err));
    free(text);
    run_close(run);
}

UNIT_TEST(rank_0_stops_waiting_for_shards_if_the_folder_is_removed) {
    JsonText manifest;
    Exec exec;
    Snapshot snapshot;
    memset(&exec, 0, sizeof exec);
    memset(&snapshot, 0, sizeof snapshot);
    exec.ranks = 2;
    snapshot.exec = &exec;
    manifest_begin(&manifest);
    assert_false(checkpoint_collect_shards(path_of("removed"), &snapshot, &manifest, &err));
    assert_error(&err, EXIT_DATA, "removed/optimizer-00001-of-00002.safetensors: the folder was removed");
    // Rank 0 must also stop waiting if another rank reports that writing its shard failed.
    error_set(&snapshot.others_error, EXIT_DATA, "rank 1: no room");
    snapshot.others_failed = true;
    assert_false(checkpoint_collect_shards(test_folder, &snapshot, &manifest, &err));
    assert_string_equal(err.text, "rank 1: no room");
    json_text_free(&manifest);
}

// Tests a manifest.json of more than 16 MiB, which lists the optimizer tensors of 128 ranks with 64 layers each.
UNIT_TEST(a_manifest_of_more_than_16_mib_is_read) {
    enum { RANKS = 128, TENSORS = 64 * 4 * 7 };
    SafeWriter share;
    JsonText text;
    Manifest manifest;
    char name[96];
    uint64_t hash;
    int count;
    const int64_t shape = 128;
    memset(&share, 0, sizeof share);
    for (int i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "model.layers.%d.self_attn.qkv_proj.weight.%d", i / 28, i);
        safewriter_declare(&share, name, DTYPE_U8, 1, &shape, i);
        share.tensors[i].hash = (uint64_t)i;
    }
    manifest_begin(&text);
    for (int rank = 0; rank < RANKS; rank++) {
        checkpoint_shard_name(name, sizeof name, rank, RANKS);
        manifest_add(&text, name, 1, 1, &share);
    }
    manifest_finish(&text);
    assert_true(text.size > 16 << 20);
    assert_true(folder_make(path_of("many"), &err));
    assert_true(file_create(path_of("many/" MANIFEST_NAME), text.text, text.size, &err));
    assert_true(manifest_open(&manifest, path_of("many"), &err));
    assert_true(checkpoint_shard_count(&manifest, &count, &err));
    assert_int_equal(count, RANKS);
    assert_true(manifest_tensor_hash(&manifest, name, share.tensors[TENSORS - 1].name, &hash, &err));
    assert_int_equal(hash, TENSORS - 1);
    manifest_close(&manifest);
    json_text_free(&text);
    safewriter_close(&share);
}

// Tests that the first damaged file is reported, although files are verified in parallel.
UNIT_TEST(the_first_damaged_file_is_reported) {
    enum { FILES_OF_ONE = 20 };
    static const int damaged[] = {18, 13, 9, 2};
    JsonText text;
    Manifest manifest;
    char name[32];
    assert_true(folder_make(path_of("several"), &err));
    manifest_begin(&text);
    for (int i = 0; i < FILES_OF_ONE; i++) {
        snprintf(name, sizeof name, "file-%02d", i);
        assert_true(manifest_write(&text, path_of("several"), name, "twelve bytes", 12, &err));
    }
    manifest_finish(&text);
    assert_true(file_create(path_of("several/" MANIFEST_NAME), text.text, text.size, &err));
    json_text_free(&text);
    assert_true(manifest_open(&manifest, path_of("several"), &err));
    for (int i = 0; i < 20; i++) assert_true(manifest_check_all(&manifest, true, &err));
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "file-%02d", damaged[i]);
        const char *path = in(path_of("several"), name);
        if (i == 1)
            assert_int_equal(unlink(path), 0);
        else
            flip_byte(path, 5);
        for (int again = 0; again < 20; again++) {
            assert_false(manifest_check_all(&manifest, true, &err));
            assert_says(&err, name);
        }
        assert_int_equal(manifest_check_all(&manifest, false, &err), i == 0);
    }
    manifest_close(&manifest);
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
