"""Parquet inputs of prepare.py: divides files into pieces of rows, and reads the rows with bounded memory. A bound is
needed because Parquet stores repeated values once, in a dictionary, so a file of 1 KB can contain 16 GB of text.
"""
from prepare_files import reader
from prepare_tokenizers import Failure, first_line, need

ROWS = 1024  # maximum rows of a piece
ROWS_BYTES = 1 << 28  # maximum bytes of a row, and of the rows of a piece


def open_parquet(path, **options):
    """Returns (file, column names, paths of the leaf columns)."""
    parquet = need("pyarrow.parquet", "pyarrow")
    try:
        file = parquet.ParquetFile(path, buffer_size=1 << 20, **options)
        leaves = [file.metadata.schema.column(i).path for i in range(file.metadata.num_columns)]
        return file, file.schema_arrow.names, leaves
    except Exception as error:
        raise Failure("%s is not a readable Parquet file (%s)" % (path, first_line(error)))


def groups_of(file, leaves, columns):
    """Yields (first row, last row + 1, uncompressed bytes) for each row group. Only bytes of `columns` count; None: all
    columns. leaves: paths of the leaf columns."""
    end = 0
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        size = sum(group.column(i).total_uncompressed_size for i, leaf in enumerate(leaves)
                   if columns is None or leaf.split(".")[0] in columns)
        begin, end = end, end + group.num_rows
        yield begin, end, size


def row_pieces(path, columns, size_wanted):
    """Yields (first row, last row + 1, bytes) of pieces of about `size_wanted` uncompressed bytes and at most ROWS
    rows. A piece never spans row groups."""
    file, _, leaves = open_parquet(path)
    for begin, end, size in groups_of(file, leaves, columns):
        step = max(1, min(ROWS, size_wanted * (end - begin) // max(1, size)))
        for at in range(begin, end, step):
            rows = min(step, end - at)
            yield at, at + rows, size * rows // (end - begin)


class Table:
    """Reads rows of the Parquet row group that contains row `begin`, in increasing order."""

    def __init__(self, path, begin, columns):
        self.path, self.begin, self.columns, self.batch = path, begin, columns, None
        file, _, leaves = open_parquet(path)
        groups = list(groups_of(file, leaves, columns))
        number = next(number for number, (_, end, _) in enumerate(groups) if begin < end)
        self.begin, self.end, size = groups[number]
        chunks = [file.metadata.row_group(number).column(i) for i in range(len(leaves))]
        repeated = [leaf for leaf, chunk in zip(leaves, chunks) if chunk.has_dictionary_page]
        first = self.guarded(next, open_parquet(path, read_dictionary=repeated)[0].iter_batches(
            1, row_groups=[number], columns=columns))
        # DELTA_BYTE_ARRAY stores only the difference from the previous row, so one row can be as long as the row group
        deltas = any("DELTA_BYTE_ARRAY" in chunk.encodings for chunk in chunks)
        # first.nbytes includes the dictionaries, which contain every repeated value
        longest = max(1, first.nbytes, size if deltas else size // (self.end - self.begin))
        self.batches = file.iter_batches(max(1, min(ROWS, ROWS_BYTES // longest)), row_groups=[number], columns=columns)

    def guarded(self, function, *arguments):
        try:
            return function(*arguments)
        except Exception as error:  # including StopIteration, if a row group has fewer rows than its header states
            raise Failure("%s: could not be read (%s)" % (self.path, first_line(error)))

    def rows(self, begin, end):
        """Yields (number, row as a dict) for rows begin to end - 1, counted from 0. `number` is counted from 1, for
        messages."""
        if begin >= self.end:
            self.__init__(self.path, begin, self.columns)
        size = 0
        while self.begin < end:
            if not self.batch:
                self.batch = self.guarded(next, self.batches)
            at = self.begin
            rows = self.batch.slice(0, (end if at >= begin else begin) - at)
            self.batch, self.begin = self.batch.slice(len(rows)), at + len(rows)
            if at < begin:
                continue
            size += rows.nbytes
            if size > ROWS_BYTES:
                one = rows.nbytes > ROWS_BYTES or self.begin - begin == 1
                where = "row %d" % self.begin if one else "rows %d to %d" % (begin + 1, self.begin)
                raise Failure("%s, %s: more than %d MiB of text; write the file without such rows" % (
                    self.path, where, ROWS_BYTES >> 20))
            yield from enumerate(self.guarded(rows.to_pylist), at + 1)


def rows_of(path, begin, end, columns=None):
    """Yields (number from 1, row as a dict) for rows begin to end - 1. columns: names of the columns to read; None:
    all."""
    return reader(Table, path, begin, columns).rows(begin, end)
