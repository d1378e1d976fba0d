// Small file helpers for what a run reads and writes: bounded reads, flushed writes, folders. Every function
// that can fail names the path in err (EXIT_DATA).
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

bool path_is_file(const char *path);
bool path_is_folder(const char *path);
bool folder_has_file(const char *folder, const char *name);
// Whether the open file or folder is the one of that name.
bool path_is_open(const char *path, int fd);
bool path_is_link(const char *path); // itself, whatever it leads to
// Fails if path is a symbolic link, for files that a run or a checkpoint must hold itself.
bool path_check_no_link(const char *path, Error *err);
const char *path_base(const char *path); // the part after the last '/'

// What the programs that make token files are called: as make install names them, where they lie beside this program.
const char *prepare_name(void);
const char *prepare_bytes_name(void);

// out = folder/name. Fails where the result does not fit.
bool path_join(char *out, size_t size, const char *folder, const char *name, Error *err);
// out = path without its last part, "." where there is no '/'. Fails where the result does not fit.
bool path_folder(char *out, size_t size, const char *path, Error *err);
// True for a plain name: not empty, no '/', not "." or "..". What a file may say about its neighbours.
bool name_is_plain(const char *name);

// Creates the folder and its parents; fine if it exists.
bool folder_make(const char *path, Error *err);
// True if errno `why` of fsync() on a folder, flock() or renameat2() says that the file system, or a sandbox, does not
// support the call. Then there is nothing that a user could change, and no error to report.
bool call_is_unsupported(int why);
// Flushes a folder's entries to the disk, so that a rename in it survives a power cut. True as well if the file system
// does not support this.
bool folder_sync(const char *path, Error *err);
// Removes a folder with all that is in it, or a file. Links are removed, never followed. What is not there is fine.
bool folder_remove(const char *path, Error *err);
// Whether permissions let it: looks first, so that nothing is removed where not all can be.
bool folder_may_remove(const char *path, Error *err);

// Opens a regular file for reading and sets *size to its length. Never waits, as for the other end of a pipe. Fails if
// the file is only a pointer of Git LFS.
bool file_open(const char *path, int *fd, uint64_t *size, Error *err);
// Reads exactly `bytes` at `offset`; a file that ends early is an error.
bool file_read_at(int fd, const char *path, uint64_t offset, void *to, size_t bytes, Error *err);
// Reads a whole file of at most `limit` bytes. *data is malloc'ed and ends in a 0 that *size does not count.
bool file_read_all(const char *path, size_t limit, char **data, size_t *size, Error *err);
// Opens a regular file to be read by lines; NULL with err.
FILE *file_open_lines(const char *path, Error *err);
// Reads the next line into line[size], with its '\n' where it has one and without a 0; returns its length, 0 at the
// end of the file. Lines longer than size are skipped: no file makes us allocate for what it calls a line.
size_t file_read_line(FILE *file, char *line, size_t size);

// Writes all bytes at the end of an open file.
bool file_append(int fd, const char *path, const void *data, size_t bytes, Error *err);
// Opens a file by a name that another program could guess, for reading and writing, and creates it if it is missing.
// flags: O_EXCL, which refuses a file that exists, and O_APPEND. Fails if path is a symbolic link, a hard link or not a
// regular file, and leaves what it leads to as it is. Returns the descriptor; -1 with err and errno.
int file_open_write(const char *path, int flags, Error *err);
// Creates a new file by file_open_write() and returns a stream for writing; NULL with err and errno.
FILE *file_create_stream(const char *path, Error *err);
// Creates a new file (refuses an existing one) holding `data`, flushed to the disk.
bool file_create(const char *path, const void *data, size_t bytes, Error *err);
// Replaces a file as a whole: written beside it, flushed, renamed over it.
bool file_replace(const char *path, const void *data, size_t bytes, Error *err);

#ifdef __cplusplus
}
#endif
