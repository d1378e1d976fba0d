// Tests of rank discovery: the environment of every launcher, flags, contradictions; and the collectives of a single
// process.
#include "comm_fixture.h"

static Error err; // of the last failed call

static Config config;

// Sets variables from "NAME=value NAME=value ..." and unsets those of all launchers.
static void environment(const char *variables) {
    char copy[512], *save = NULL;
    clear_launchers();
    config_defaults(&config);
    snprintf(copy, sizeof copy, "%s", variables);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(word, '=');
        *equals = '\0';
        setenv(word, equals + 1, 1);
    }
}

static void assert_place(int rank, int ranks, int local_rank, int local_ranks, const char *launcher, bool mpi) {
    CommPlace place;
    if (!comm_discover(&config, &place, &err)) fail_msg("%s", err.text);
    assert_int_equal(place.rank, rank);
    assert_int_equal(place.ranks, ranks);
    assert_int_equal(place.local_rank, local_rank);
    assert_int_equal(place.local_ranks, local_ranks);
    assert_string_equal(place.launcher, launcher);
    assert_int_equal(place.mpi, mpi);
}

static void assert_refused(const char *what, const char *fix) {
    CommPlace place;
    assert_false(comm_discover(&config, &place, &err));
    assert_int_equal(err.code, EXIT_USER);
    assert_says(&err, what);
    assert_says(&err, fix);
}

UNIT_TEST(test_one_process) {
    environment("");
    assert_place(0, 1, 0, 1, "", false);
    environment("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0");
    assert_place(0, 1, 0, 1, "", false);
    environment("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1");
    assert_place(0, 1, 0, 1, "", false);
    environment("RANK=0");
    assert_place(0, 1, 0, 1, "", false);
    environment("");
    config.world_size = 1;
    config.rank = 0;
    assert_place(0, 1, 0, 1, "", false);
}

UNIT_TEST(test_mpirun) {
    environment("OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 "
                "OMPI_COMM_WORLD_LOCAL_SIZE=4");
    assert_place(5, 8, 1, 4, "mpirun", true);
    config.world_size = 8; // the flag may repeat it
    config.rank = 5;
    assert_place(5, 8, 1, 4, "mpirun", true);
    // in a Slurm job, whose variables belong to the daemon that mpirun started there
    environment("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "
                "OMPI_COMM_WORLD_LOCAL_SIZE=2 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=4 SLURM_LOCALID=0");
    assert_place(3, 4, 1, 2, "mpirun", true);
    environment("PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=4");
    assert_place(2, 4, 2, 4, "mpiexec", true);
}

UNIT_TEST(test_torchrun) {
    environment("RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8 MASTER_ADDR=host MASTER_PORT=1234");
    assert_place(9, 16, 1, 8, "the environment", false);
    environment("RANK=1 WORLD_SIZE=2");
    assert_place(1, 2, 1, 0, "the environment", false);
    // one torchrun per machine, started by srun, which sets its own variables
    environment("TORCHELASTIC_RUN_ID=x RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8 PMI_RANK=1 PMI_SIZE=2 "
                "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0");
    assert_place(9, 16, 1, 8, "the environment", false);
}

UNIT_TEST(test_srun) {
    environment("SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=1");
    assert_place(3, 4, 1, 0, "srun", false);
    environment("SLURM_PROCID=6 SLURM_STEP_NUM_TASKS=7 SLURM_NTASKS=9 SLURM_LOCALID=0 SLURM_NODEID=3 "
                "SLURM_STEP_TASKS_PER_NODE=2(x3),1");
    assert_place(6, 7, 0, 1, "srun", false);
    setenv("SLURM_NODEID", "2", 1);
    setenv("SLURM_LOCALID", "1", 1);
    assert_place(6, 7, 1, 2, "srun", false);
    setenv("PMIX_RANK", "6", 1);
    assert_place(6, 7, 1, 2, "srun", true);
    setenv("SLURM_STEP_TASKS_PER_NODE", "nonsense", 1);
    assert_place(6, 7, 1, 0, "srun", true);
    environment("PMI_RANK=1 PMI_SIZE=2 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_NODEID=1 "
                "SLURM_STEP_TASKS_PER_NODE=1(x2)");
    assert_place(1, 2, 0, 1, "mpiexec", true);
    // a command of a batch script, not started by srun
    environment("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0 ENVIRONMENT=BATCH");
    assert_place(0, 1, 0, 1, "", false);
    setenv("SLURM_STEP_ID", "0", 1);
    assert_place(0, 4, 0, 0, "srun", false);
}

UNIT_TEST(test_flags) {
    environment("");
    config.world_size = 4;
    config.rank = 2;
    assert_place(2, 4, 2, 0, "the flags", false);
    setenv("LOCAL_RANK", "0", 1);
    assert_place(2, 4, 0, 0, "the flags", false);
    environment("RANK=2"); // one of the two variables
    config.world_size = 4;
    assert_place(2, 4, 2, 0, "the environment", false);
    environment("WORLD_SIZE=4");
    config.rank = 2;
    assert_place(2, 4, 2, 0, "the environment", false);
}

UNIT_TEST(test_contradictions) {
    environment("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 RANK=0 WORLD_SIZE=2");
    assert_refused("RANK=0", "unset");
    environment("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 RANK=1 WORLD_SIZE=4");
    assert_refused("WORLD_SIZE=4", "OMPI_COMM_WORLD_SIZE");
    environment("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2");
    config.world_size = 4;
    assert_refused("--world-size 4: mpirun started 2 processes (OMPI_COMM_WORLD_SIZE=2, OMPI_COMM_WORLD_RANK=1)",
                   "mpirun -np 4");
    config.world_size = 0;
    config.rank = 0;
    assert_refused("--rank 0: mpirun says that this is rank 1 (OMPI_COMM_WORLD_SIZE=2", "add --world-size");
    environment("RANK=1 WORLD_SIZE=2");
    config.world_size = 3;
    assert_refused("--world-size 3", "WORLD_SIZE=3");
    environment("");
    config.world_size = 2;
    assert_refused("--world-size 2", "--rank");
    environment("");
    config.rank = 1;
    assert_refused("--rank 1", "--world-size");
    environment("WORLD_SIZE=2");
    assert_refused("WORLD_SIZE 2", "--rank");
    environment("RANK=3");
    assert_refused("RANK 3", "--world-size");
    environment("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_STEP_ID=0");
    config.world_size = 2;
    assert_refused("--world-size 2: srun started 4 processes (SLURM_STEP_NUM_TASKS=4, SLURM_PROCID=0)", "srun -n 2");
}

// Flags override the variables of a shell in a job of several processes, as in `srun -n4 --pty bash`.
UNIT_TEST(test_flags_win) {
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
        if (i != 3) assert_place(2, 3, 2, 0, "the flags", false);
    }
}

UNIT_TEST(test_malformed) {
    environment("RANK=one WORLD_SIZE=2");
    assert_refused("RANK=one", "unset");
    environment("RANK=-1 WORLD_SIZE=2");
    assert_refused("RANK=-1", "unset");
    environment("RANK=2 WORLD_SIZE=2");
    assert_refused("RANK=2", "WORLD_SIZE=2");
    environment("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=0");
    assert_refused("OMPI_COMM_WORLD_SIZE=0", "ranks count");
    environment("RANK=0 WORLD_SIZE=99999999999");
    assert_refused("WORLD_SIZE=99999999999", "unset");
    environment("RANK=0 WORLD_SIZE=2 LOCAL_RANK=x");
    assert_refused("LOCAL_RANK=x", "unset");
    environment("RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2");
    assert_refused("process 2 of 2 on this machine", "LOCAL_RANK");
}

// --- collectives of one process ---------------------------------------------------------------------------------

UNIT_TEST(test_collectives_of_one) {
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
    comm_all_gather(comm, in, in, 3, COMM_FP32); // in place
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

// Several CPU processes need a launcher of MPI, and a build with MPI; the error says which is missing.
UNIT_TEST(test_cpus_need_mpi) {
    Exec exec;
    memset(&exec, 0, sizeof exec);
    exec.ops = cpu_ops();
    CommPlace place = place_of(0, 2);
    config_defaults(&config);
    assert_null(comm_open(&place, &config, &exec, &err));
    assert_int_equal(err.code, EXIT_USER);
    assert_says(&err, "2 processes on CPUs");
    assert_says(&err, "MPI");
}

RUN_TESTS(test_folder_make, test_folder_remove, NULL)
