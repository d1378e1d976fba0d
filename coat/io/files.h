// Reads, writes, creates and removes files and folders. Every function that can fail sets err to EXIT_DATA and to a
// message with the path.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

C_LINKAGE_BEGIN

#define PATH_BUFFER 4096                                         // size of buffers for paths in bytes
#define LFS_POINTER "version https://git-lfs.github.com/spec/v1" // first line of a Git LFS pointer file

bool path_is_file(const char *path);
bool path_is_folder(const char *path);
bool folder_has_file(const char *folder, const char *name);
// True if `path` currently names the open file or folder `fd`.
bool path_is_open(const char *path, int fd);
bool path_is_link(const char *path); // true for a symbolic link, even if it is broken
// Fails if path is a symbolic link. Used for files that must be inside a run's folder or a checkpoint.
bool path_check_no_link(const char *path, Error *err);
const char *path_base(const char *path); // returns the part after the last '/'

// Return, for messages, the command that starts prepare.py or prepare_bytes, which create token files: "coat-prepare"
// or "coat-prepare-bytes" if the folder of the running program contains a file of that name, otherwise
// "data/prepare.py" or "build/prepare_bytes".
const char *prepare_name(void);
const char *prepare_bytes_name(void);

// Writes the path folder/name to out[size]. Fails if the path does not fit.
bool path_join(char *out, size_t size, const char *folder, const char *name, Error *err);
// Writes path without its last component to out[size]; "." if path has no '/'. Fails if the result does not fit.
bool path_folder(char *out, size_t size, const char *path, Error *err);
// True if `name` can name a file in a given folder: it is not empty, "." or "..", and has no '/'.
bool name_is_plain(const char *name);

// Creates a folder and its parents if they do not exist.
bool folder_make(const char *path, Error *err);
// True if `why`, an errno of open() or fsync() on a folder, of flock() or of renameat2(), shows that the file system, a
// sandbox or the folder's permissions rule out the call. Callers then do without the call instead of failing, because
// the user often cannot change the reason.
bool call_is_unsupported(int why);
// Flushes a folder's entries to the disk, so that a rename in the folder survives a power failure. Also returns true if
// the file system cannot flush folders.
bool folder_sync(const char *path, Error *err);
// Removes a file, or a folder with its contents. Removes links without following them. Succeeds if `path` does not
// exist.
bool folder_remove(const char *path, Error *err);
// True if permissions allow folder_remove() on `path`. Call this first, so that folder_remove() does not fail halfway.
bool folder_may_remove(const char *path, Error *err);

// Opens a file for reading, and sets *size to its length in bytes. Fails if the file is a Git LFS pointer or not a
// regular file. If `path` is a pipe, does not wait for a writer. Sets *fd to -1 on failure.
bool file_open(const char *path, int *fd, uint64_t *size, Error *err);
// Reads exactly `bytes` bytes at `offset` of a file. Fails if the file ends earlier.
bool file_read_at(int fd, const char *path, uint64_t offset, void *to, size_t bytes, Error *err);
// Reads a file of at most `limit` bytes into *data, which the caller must free. A terminating 0 follows the *size
// bytes. Sets *data to NULL on failure.
bool file_read_all(const char *path, size_t limit, char **data, size_t *size, Error *err);
// Opens a regular file as a stream for file_read_line(). Returns NULL with err on failure.
FILE *file_open_lines(const char *path, Error *err);
// Reads the next line of a file into line[size], including a final newline, without a terminating 0. Returns the line's
// length; 0 at the end of the file or after a read error. Skips lines longer than `size`.
size_t file_read_line(FILE *file, char *line, size_t size);

// Writes all `bytes` bytes to an open file: at its end if it was opened with O_APPEND, else at its current position.
bool file_append(int fd, const char *path, const void *data, size_t bytes, Error *err);
// Opens a file for reading and writing, and creates it if it does not exist. Fails if path is a symbolic link, a hard
// link or not a regular file: another program could guess the name and place a link there, so that a different file
// would be overwritten.
// `flags` may include O_EXCL, which rejects an existing file, and O_APPEND. Returns the descriptor; -1 with err and
// errno on failure.
int file_open_write(const char *path, int flags, Error *err);
// Creates a new file with file_open_write() and returns a stream for writing; NULL with err and errno on failure.
FILE *file_create_stream(const char *path, Error *err);
// Creates a file with the contents `data` and flushes it to the disk. Fails if the file exists. If writing fails, the
// incomplete file remains.
bool file_create(const char *path, const void *data, size_t bytes, Error *err);
// Replaces a file's contents atomically: writes PATH.tmp, flushes it to the disk and renames it to PATH.
bool file_replace(const char *path, const void *data, size_t bytes, Error *err);

C_LINKAGE_END
