// How processes without MPI find each other: rank 0 listens at an address that all ranks know, and the others connect.
// Once all have connected, rank 0 sends a few bytes (NCCL's id) to all.
#pragma once
#include "comm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RENDEZVOUS_PORT 29500 // unless MASTER_PORT or --rendezvous sets another

typedef struct {
    char host[256]; // of rank 0, a name or an address
    int port;
    uint64_t run; // identifies the run: rank 0 refuses processes of other runs
} Rendezvous;

// Finds the address: --rendezvous HOST[:PORT]; else MASTER_ADDR and MASTER_PORT; else this machine if all processes are
// on it; else the first machine of a Slurm step. The run is identified by the job of torchrun or srun and by --out.
// EXIT_USER if nothing names an address, or if --rendezvous is not one.
bool rendezvous_find(const Config *config, const CommPlace *place, Rendezvous *r, Error *err);

// Copies data[bytes] of rank 0 to all other ranks. On rank 0 it returns when all ranks have received them. EXIT_RANK if
// a rank has not connected within `timeout` seconds. EXIT_USER for an unknown host, a port in use, a process of another
// run, or processes that disagree about their number.
bool rendezvous_share(const Rendezvous *r, const CommPlace *place, void *data, size_t bytes, int timeout, Error *err);

#ifdef __cplusplus
}
#endif
