// How processes without MPI find each other: rank 0's few bytes reach all ranks, over TCP or through a shared file.
#pragma once
#include "comm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RENDEZVOUS_PORT 29500 // unless MASTER_PORT or --rendezvous says otherwise

typedef struct {
    char host[256]; // of rank 0, a name or an address; "" = by file
    int port;
    char path[256]; // of the file
} Meeting;

// Where: --rendezvous HOST[:PORT] or a PATH with a slash in it; else MASTER_ADDR and MASTER_PORT; else this machine,
// where all processes are on it; else the first machine of a Slurm step. EXIT_USER where none of these says it.
bool rendezvous_where(const Config *config, const CommPlace *place, Meeting *meeting, Error *err);

// Returns when data[bytes] holds on this rank what it held on rank 0, where it returns when all ranks have come for
// it. EXIT_RANK where some have not come within `patience` seconds; EXIT_USER for an unknown host, a port in use,
// processes that disagree about how many they are.
bool rendezvous(const Meeting *meeting, const CommPlace *place, void *data, size_t bytes, int patience, Error *err);

bool rendezvous_tcp(const Meeting *meeting, const CommPlace *place, void *data, size_t bytes, int patience, Error *err);
bool rendezvous_file(const char *path, const CommPlace *place, void *data, size_t bytes, int patience, Error *err);

#ifdef __cplusplus
}
#endif
