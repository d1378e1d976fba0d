// Connects the processes of a run without MPI. Rank 0 listens at an address that all ranks know, and the other ranks
// connect. When all ranks are connected, rank 0 sends the same few bytes, such as NCCL's id, to every rank.
#pragma once
#include "comm.h"

C_LINKAGE_BEGIN

// Default TCP port. In a Slurm job, the last 3 digits of the job's number are added. MASTER_PORT and --rendezvous
// override it.
#define RENDEZVOUS_PORT 29500

typedef struct {
    char host[256]; // name or address of rank 0
    int port;
    uint64_t run; // id of the run; rank 0 refuses a process that sends a different id
} Rendezvous;

// Finds the address of rank 0, and the id of the run.
//   host: --rendezvous HOST[:PORT], else MASTER_ADDR, else 127.0.0.1 if this machine runs all processes, else the first
//         machine of a Slurm step
//   port: --rendezvous, else MASTER_PORT (plus 1 if torchrun itself listens there), else RENDEZVOUS_PORT (plus the last
//         3 digits of the job's number in a Slurm job)
//   run:  hash of --out, of torchrun's run id, and of the Slurm job and step if srun started this process
// Fails (EXIT_USER) if there is no host, or if --rendezvous or MASTER_PORT is not valid.
bool rendezvous_find(const Config *config, const CommPlace *place, Rendezvous *r, Error *err);

// Copies rank 0's data[bytes] to all other ranks. Rank 0 returns when it has sent the bytes to all ranks. Fails with
// EXIT_RANK if a rank has not connected within `timeout` seconds, or if a signal has asked this process to end. Fails
// with EXIT_USER if the host is unknown, the port is in use, or rank 0 belongs to another run. Also fails with
// EXIT_USER if two processes have the same rank or disagree about the number of processes.
bool rendezvous_share(const Rendezvous *r, const CommPlace *place, void *data, size_t bytes, int timeout, Error *err);

C_LINKAGE_END
