// Tests how a process finds its rank: from a launcher's environment variables, or from --rank and --world-size. Both
// flags, or --world-size 1, override the variables; other contradictions are errors. Also tests the collectives of a
// run with one process.
#include "comm_fixture.h"

static Error err; // error of the last failed call

static Config config;

#define OMPI_1_OF_2 "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2"
#define OMPI_5_OF_8                                                                                                    \
    "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4"
#define SRUN_6_OF_7 "SLURM_PROCID=6 SLURM_STEP_NUM_TASKS=7 SLURM_NTASKS=9"

// Unsets the variables of all launchers. Then sets the variables of the text "NAME=value NAME=value ...".
static void environment(const char *variables) {
    char *save = NULL;
    clear_launchers();
    config_defaults(&config);
    char *copy = formatted("%s", variables);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(word, '=');
        *equals = '\0';
        setenv(word, equals + 1, 1);
    }
}

static void assert_place(int rank, int ranks, int local_rank, int local_ranks, const char *launcher, bool mpi) {
    CommPlace place;
    if (!comm_discover(&config, &place, &err)) fail_msg("%s", err.text);
    if (place.rank != rank || place.ranks != ranks || place.local_rank != local_rank ||
        place.local_ranks != local_ranks || strcmp(place.launcher, launcher) != 0 || place.mpi != mpi)
        fail_msg("rank %d of %d, %d of %d here, launcher %s, MPI %d", place.rank, place.ranks, place.local_rank,
                 place.local_ranks, place.launcher, place.mpi);
}

static void assert_refused(const char *what, const char *fix) {
    CommPlace place;
    assert_false(comm_discover(&config, &place, &err));
    assert_says(&err, fix);
    assert_error(&err, EXIT_USER, what);
}

UNIT_TEST(rank_is_found_from_launcher_variables_or_flags) {
    static const struct {
        const char *variables;
        int world_size_flag, rank_flag; // --world-size (0: not given) and --rank (-1: not given)
        int rank, ranks, local_rank, local_ranks;
        const char *launcher;
        bool mpi;
    } cases[] = {
        {"", 0, -1, 0, 1, 0, 1, "", false},
        {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0", 0, -1, 0, 1, 0, 1, "", false},
        {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", 0, -1, 0, 1, 0, 1, "", false},
        {"RANK=0", 0, -1, 0, 1, 0, 1, "", false},
        {"", 1, 0, 0, 1, 0, 1, "", false},
        {OMPI_5_OF_8, 0, -1, 5, 8, 1, 4, "mpirun", true},
        {OMPI_5_OF_8, 8, 5, 5, 8, 1, 4, "mpirun", true}, // flags with the values of the variables are accepted
        // mpirun in a Slurm job: the Slurm variables describe the daemon that mpirun started, not this rank.
        {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
         "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=4 SLURM_LOCALID=0",
         0, -1, 3, 4, 1, 2, "mpirun", true},
        {"PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=4", 0, -1, 2, 4, 2, 4, "mpiexec", true},
        {"RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8 MASTER_ADDR=host MASTER_PORT=1234", 0, -1, 9, 16, 1, 8,
         "the environment", false},
        {"RANK=1 WORLD_SIZE=2", 0, -1, 1, 2, 1, 0, "the environment", false},
        // torchrun started by srun on each machine: torchrun's variables apply, not srun's.
        {"TORCHELASTIC_RUN_ID=x RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8 PMI_RANK=1 PMI_SIZE=2 "
         "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0",
         0, -1, 9, 16, 1, 8, "the environment", false},
        {"SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=1", 0, -1, 3, 4, 1, 0, "srun", false},
        {SRUN_6_OF_7 " SLURM_LOCALID=0 SLURM_NODEID=3 SLURM_STEP_TASKS_PER_NODE=2(x3),1", 0, -1, 6, 7, 0, 1, "srun",
         false},
        {SRUN_6_OF_7 " SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=2(x3),1", 0, -1, 6, 7, 1, 2, "srun",
         false},
        {SRUN_6_OF_7 " SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=2(x3),1 PMIX_RANK=6", 0, -1, 6, 7, 1, 2,
         "srun", true},
        {SRUN_6_OF_7 " SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=nonsense PMIX_RANK=6", 0, -1, 6, 7, 1,
         0, "srun", true},
        {"PMI_RANK=1 PMI_SIZE=2 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_NODEID=1 "
         "SLURM_STEP_TASKS_PER_NODE=1(x2)",
         0, -1, 1, 2, 0, 1, "mpiexec", true},
        // First case: a batch script runs the command without srun. Second case: srun runs the command.
        {"SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 ENVIRONMENT=BATCH", 0, -1, 0, 1, 0, 1, "", false},
        {"SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 ENVIRONMENT=BATCH SLURM_STEP_ID=0", 0, -1, 0, 4, 0, 0, "srun",
         false},
        {"", 4, 2, 2, 4, 2, 0, "the flags", false},
        {"LOCAL_RANK=0", 4, 2, 2, 4, 0, 0, "the flags", false},
        {"RANK=2", 4, -1, 2, 4, 2, 0, "the environment", false},
        {"WORLD_SIZE=4", 0, 2, 2, 4, 2, 0, "the environment", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        environment(cases[i].variables);
        if (cases[i].world_size_flag > 0) config.world_size = cases[i].world_size_flag;
        if (cases[i].rank_flag >= 0) config.rank = cases[i].rank_flag;
        assert_place(cases[i].rank, cases[i].ranks, cases[i].local_rank, cases[i].local_ranks, cases[i].launcher,
                     cases[i].mpi);
    }
}

UNIT_TEST(contradictory_ranks_are_refused) {
    static const struct {
        const char *variables;
        int world_size_flag, rank_flag; // --world-size (0: not given) and --rank (-1: not given)
        const char *object, *remedy;
    } cases[] = {
        {OMPI_1_OF_2 " RANK=0 WORLD_SIZE=2", 0, -1, "RANK=0", "unset"},
        {OMPI_1_OF_2 " RANK=1 WORLD_SIZE=4", 0, -1, "WORLD_SIZE=4", "OMPI_COMM_WORLD_SIZE"},
        {OMPI_1_OF_2, 4, -1, "--world-size 4: mpirun started 2 processes", "mpirun -np 4"},
        {OMPI_1_OF_2, 0, 0, "--rank 0: mpirun", "add --world-size"},
        {"RANK=1 WORLD_SIZE=2", 3, -1, "--world-size 3", "WORLD_SIZE=3"},
        {"", 2, -1, "--world-size 2", "--rank"},
        {"", 0, 1, "--rank 1", "--world-size"},
        {"WORLD_SIZE=2", 0, -1, "WORLD_SIZE 2", "--rank"},
        {"RANK=3", 0, -1, "RANK 3", "--world-size"},
        {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_STEP_ID=0", 2, -1,
         "--world-size 2: srun started 4 processes", "srun -n 2"},
        // Malformed or impossible values of variables are refused.
        {"RANK=one WORLD_SIZE=2", 0, -1, "RANK=one", "unset"},
        {"RANK=-1 WORLD_SIZE=2", 0, -1, "RANK=-1", "unset"},
        {"RANK=2 WORLD_SIZE=2", 0, -1, "RANK=2", "WORLD_SIZE=2"},
        {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=0", 0, -1, "OMPI_COMM_WORLD_SIZE=0", "must be less than"},
        {"RANK=0 WORLD_SIZE=99999999999", 0, -1, "WORLD_SIZE=99999999999", "unset"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=x", 0, -1, "LOCAL_RANK=x", "unset"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", 0, -1, "local rank 2 of 2 on this machine",
         "LOCAL_RANK"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        environment(cases[i].variables);
        if (cases[i].world_size_flag > 0) config.world_size = cases[i].world_size_flag;
        if (cases[i].rank_flag >= 0) config.rank = cases[i].rank_flag;
        assert_refused(cases[i].object, cases[i].remedy);
    }
}

// Tests that --world-size and --rank override variables of the shell's job, as in `srun -n4 --pty bash`.
UNIT_TEST(rank_flags_override_launcher_variables) {
    static const char *const shells[] = {
        "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_STEP_ID=0",
        "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0",
        "RANK=3 WORLD_SIZE=4 LOCAL_RANK=3 LOCAL_WORLD_SIZE=4",
        "RANK=three WORLD_SIZE=4",
        "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=4",
        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 RANK=0 WORLD_SIZE=2",
        "WORLD_SIZE=4",
        "RANK=0",
        "PMIX_RANK=3"};
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
        environment(shells[i]);
        config.world_size = 1;
        assert_place(0, 1, 0, 1, "", false);
        config.rank = 0;
        assert_place(0, 1, 0, 1, "", false);
        config.world_size = 3;
        config.rank = 2;
        // A malformed RANK is an error even if both flags are given.
        if (strncmp(shells[i], "RANK=three", 10) == 0)
            assert_refused("RANK=three", "unset");
        else
            assert_place(2, 3, 2, 0, "the flags", false);
    }
}

// --- collective operations in a run with one process ------------------------------------------------------------

UNIT_TEST(collectives_of_one_process_copy_the_data) {
    Exec exec;
    memset(&exec, 0, sizeof exec);
    exec.ops = cpu_ops();
    CommPlace place = place_of(0, 1);
    config_defaults(&config);
    Comm *comm = comm_open(&place, &config, &exec, &err);
    assert_non_null(comm);
    assert_int_equal(comm_ranks(comm), 1);
    assert_int_equal(comm_rank(comm), 0);
    float in[3] = {1, 2, 3}, out[3] = {0, 0, 0};
    comm_all_reduce(comm, in, 3, COMM_FP32, COMM_SUM);
    comm_group_begin(comm);
    comm_reduce_scatter(comm, out, in, 3, COMM_FP32);
    comm_group_end(comm);
    assert_memory_equal(out, in, sizeof in);
    out[0] = 7;
    comm_all_gather(comm, in, out, 3, COMM_FP32);
    assert_memory_equal(out, in, sizeof in);
    comm_all_gather(comm, in, in, 3, COMM_FP32); // in place: input and output are the same memory
    assert_memory_equal(out, in, sizeof in);
    out[0] = 8;
    comm_all_to_all(comm, in, out, 3, COMM_FP32);
    assert_memory_equal(out, in, sizeof in);
    comm_after_compute(comm);
    comm_wait(comm, comm_mark(comm));
    assert_true(comm_check(comm, &err));
    assert_int_equal(comm_max_i64(comm, -5), -5);
    assert_int_equal(comm_sum_i64(comm, 1ll << 40), 1ll << 40);
    error_set(&err, EXIT_DATA, "my own words");
    assert_false(comm_all_good(comm, false, &err));
    assert_string_equal(err.text, "my own words");
    comm_close(comm);
    comm_close(NULL);
}

UNIT_TEST(several_cpu_processes_need_mpi) {
    Exec exec;
    memset(&exec, 0, sizeof exec);
    exec.ops = cpu_ops();
    CommPlace place = place_of(0, 2);
    config_defaults(&config);
    assert_null(comm_open(&place, &config, &exec, &err));
    assert_error(&err, EXIT_USER, "2 processes on CPUs&MPI");
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
