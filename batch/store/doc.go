// Package store keeps files and batches in an SQL database, and hands the work out to workers.
//
// The work is handed out in chunks: runs of lines of an input file. A row for each line in a job queue, as River and others have
// it, costs a worker three writes a line; a chunk costs three for a thousand lines, and its lines stay together, so that those with
// the same prefix can run one after another. A chunk is leased: its epoch rises with each lease, every later write names the epoch,
// and what comes from a worker whose lease was given to another one is refused with [ErrLost]. Leases
// have no end by a clock, which may be set, or differ between machines: each renewal changes a counter, and a worker revokes a lease whose
// counter it has seen unchanged for long.
//
// Each line counts once, whatever is killed when. A result is durable in one of two ways, and never in both: as a row, while its
// chunk runs, or in the segment of its finished chunk, which is a blob. The transaction that finishes the chunk names the segment and
// deletes the rows. The output file of a batch is the list of its segments, and exists from the transaction that ends the batch on.
//
// The statements work on SQLite, with which [OpenSQLite] opens the embedded database of one process, and on PostgreSQL, which [OpenPostgres]
// opens and several processes share. The package reads no clock: callers pass the time, in Unix milliseconds. It knows no contents of files.
package store
