// Connects processes without MPI: rank 0 listens at an address that all ranks know, and the other ranks connect. When
// all are connected, rank 0 sends a few bytes (NCCL's id) to all.
#pragma once
#include "comm.h"

C_LINKAGE_BEGIN

#define RENDEZVOUS_PORT 29500 // default port, which MASTER_PORT or --rendezvous overrides

typedef struct {
    char host[256]; // name or address of rank 0
    int port;
    uint64_t run; // id of the run; rank 0 refuses processes with another id
} Rendezvous;

// Finds rank 0's address: --rendezvous HOST[:PORT]; else MASTER_ADDR and MASTER_PORT; else this machine if all
// processes are on it; else the first machine of a Slurm step. The run's id is computed from the job of torchrun or
// srun and from --out. Fails (EXIT_USER) if there is no address, or if --rendezvous is not valid.
bool rendezvous_find(const Config *config, const CommPlace *place, Rendezvous *r, Error *err);

// Copies data[bytes] of rank 0 to all other ranks; rank 0 returns when all ranks have received it. Fails with EXIT_RANK
// if a rank has not connected within `timeout` seconds, and with EXIT_USER for an unknown host, a port in use, a
// process of another run, or processes that disagree about their number.
bool rendezvous_share(const Rendezvous *r, const CommPlace *place, void *data, size_t bytes, int timeout, Error *err);

C_LINKAGE_END
