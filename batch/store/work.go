package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-serving/tandem/batch"
)

// Open is a batch that has not ended, as workers see it.
type Open struct {
	batch.Batch
	Waiting, Leased int64 // chunks
	Chunks          int64 // that are not done
	Epoch           int64 // of its validation
	Renewals        int64 // of the lease of its validation; 0: no worker has one
}

// Lease is what a worker has of a chunk, or of the validation of a batch. It lasts until it is revoked: the store reads no clock, and a worker
// that renews its leases is told from one that was killed by Renewals.
type Lease struct {
	Batch    string
	Chunk    int64 // Validation: that of the batch
	Epoch    int64
	Renewals int64
}

// Validation is the Chunk of a lease of the validation of a batch.
const Validation = -1

// Chunk is a run of lines of an input file that a worker has leased.
type Chunk struct {
	Batch               string
	Number, Epoch       int64
	Start, Bytes        int64 // in the input file
	First, Lines        int64 // number of its first line in the file, from 0, and of its lines
	Output, ErrorOutput batch.Part
}

// Result is the durable result of a line.
type Result struct {
	Line int64 // number in the file, from 0
	OK   bool  // it belongs into the output file, not the error file
	Text []byte
}

// Recover takes all leases away. The caller knows that no worker runs.
func (s *Store) Recover(ctx context.Context) error {
	_, err := s.db.ExecContext(ctx, `UPDATE chunks SET state = 0 WHERE state = 1`)
	if err == nil {
		_, err = s.db.ExecContext(ctx, `UPDATE batches SET renewals = 0 WHERE status = 'validating'`)
	}
	if err != nil {
		return fmt.Errorf("taking the leases of an earlier process: %w", err)
	}
	return nil
}

// Leases returns the leases of all workers.
func (s *Store) Leases(ctx context.Context) (leases []Lease, err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT batch, number, epoch, renewals FROM chunks WHERE state = 1 AND batch IN (SELECT id FROM batches WHERE status IN `+openStatuses+`)
		UNION ALL SELECT id, $1, epoch, renewals FROM batches WHERE status = 'validating' AND renewals > 0`, Validation)
	if err != nil {
		return nil, fmt.Errorf("listing leases: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var l Lease
		if err := rows.Scan(&l.Batch, &l.Chunk, &l.Epoch, &l.Renewals); err != nil {
			return nil, fmt.Errorf("listing leases: %w", err)
		}
		leases = append(leases, l)
	}
	return leases, rows.Err()
}

// Revoke takes a lease from its worker. ErrLost: it was renewed, or has ended.
func (s *Store) Revoke(ctx context.Context, l Lease) error {
	var result sql.Result
	var err error
	if l.Chunk == Validation {
		result, err = s.db.ExecContext(ctx, `UPDATE batches SET renewals = 0 WHERE id = $1 AND epoch = $2 AND renewals = $3 AND status = 'validating'`, l.Batch, l.Epoch, l.Renewals)
	} else {
		result, err = s.db.ExecContext(ctx, `UPDATE chunks SET state = 0 WHERE batch = $1 AND number = $2 AND epoch = $3 AND renewals = $4 AND state = 1`, l.Batch, l.Chunk, l.Epoch, l.Renewals)
	}
	if err := changed(result, err, ErrLost); err != nil {
		return fmt.Errorf("revoking a lease of batch %s: %w", l.Batch, err)
	}
	return nil
}

// OpenBatches returns the batches that have not ended, oldest first.
func (s *Store) OpenBatches(ctx context.Context) (open []Open, err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT `+batchColumns+`, open_chunks, epoch, renewals,
		(SELECT count(*) FROM chunks WHERE batch = id AND state = 0), (SELECT count(*) FROM chunks WHERE batch = id AND state = 1)
		FROM batches WHERE status IN `+openStatuses+` ORDER BY created, id`)
	if err != nil {
		return nil, fmt.Errorf("listing open batches: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var o Open
		if o.Batch, err = scanBatch(rows, &o.Chunks, &o.Epoch, &o.Renewals, &o.Waiting, &o.Leased); err != nil {
			return nil, fmt.Errorf("listing open batches: %w", err)
		}
		open = append(open, o)
	}
	return open, rows.Err()
}

// LeaseValidation leases the validation of a batch, and returns its epoch. ErrLost: another worker was first.
func (s *Store) LeaseValidation(ctx context.Context, id string, epoch int64) (int64, error) {
	result, err := s.db.ExecContext(ctx, `UPDATE batches SET epoch = epoch + 1, renewals = 1 WHERE id = $1 AND epoch = $2 AND renewals = 0 AND status = 'validating'`, id, epoch)
	if err := changed(result, err, ErrLost); err != nil {
		return 0, fmt.Errorf("leasing the validation of batch %s: %w", id, err)
	}
	return epoch + 1, nil
}

// RenewValidation renews the lease of a validation.
func (s *Store) RenewValidation(ctx context.Context, id string, epoch int64) error {
	result, err := s.db.ExecContext(ctx, `UPDATE batches SET renewals = renewals + 1 WHERE id = $1 AND epoch = $2 AND renewals > 0 AND status = 'validating'`, id, epoch)
	if err := changed(result, err, ErrLost); err != nil {
		return fmt.Errorf("renewing the validation of batch %s: %w", id, err)
	}
	return nil
}

// ReleaseValidation ends the lease of a validation that has come to nothing.
func (s *Store) ReleaseValidation(ctx context.Context, id string, epoch int64) error {
	_, err := s.db.ExecContext(ctx, `UPDATE batches SET renewals = 0 WHERE id = $1 AND epoch = $2 AND status = 'validating'`, id, epoch)
	if err != nil {
		return fmt.Errorf("releasing the validation of batch %s: %w", id, err)
	}
	return nil
}

// Fail ends a batch whose input file is invalid.
func (s *Store) Fail(ctx context.Context, id string, epoch int64, problems []batch.Problem, now int64) error {
	text, err := json.Marshal(problems)
	if err == nil {
		var result sql.Result
		result, err = s.db.ExecContext(ctx, `UPDATE batches SET status = 'failed', failed = $3, problems = $4 WHERE id = $1 AND epoch = $2 AND status = 'validating'`, id, epoch, now, string(text))
		err = changed(result, err, ErrLost)
	}
	if err != nil {
		return fmt.Errorf("ending batch %s: %w", id, err)
	}
	return nil
}

// Begin has a validated batch run: lines for model, in these chunks, of which Start, Bytes, First and Lines count.
func (s *Store) Begin(ctx context.Context, id string, epoch int64, model string, chunks []Chunk, now int64) error {
	var total int64
	for _, c := range chunks {
		total += c.Lines
	}
	err := s.transact(ctx, func(tx *sql.Tx) error {
		err := exec(ctx, tx, ErrLost, `UPDATE batches SET status = 'in_progress', in_progress = $3, model = $4, total = $5, open_chunks = $6
			WHERE id = $1 AND epoch = $2 AND status = 'validating'`, id, epoch, now, model, total, len(chunks))
		if err != nil {
			return err
		}
		insert, err := tx.PrepareContext(ctx, `INSERT INTO chunks (batch, number, start, bytes, first, lines, state, epoch, renewals, output, output_bytes, error_blob, error_bytes)
			VALUES ($1, $2, $3, $4, $5, $6, 0, 0, 0, '', 0, '', 0)`)
		if err != nil {
			return err
		}
		defer insert.Close()
		for i, c := range chunks {
			if _, err := insert.ExecContext(ctx, id, i, c.Start, c.Bytes, c.First, c.Lines); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("beginning batch %s: %w", id, err)
	}
	return nil
}

// Lease leases the first chunk of a batch that no worker has. batch.ErrNotFound: there is none.
func (s *Store) Lease(ctx context.Context, id string) (c Chunk, err error) {
	c.Batch = id
	err = s.transact(ctx, func(tx *sql.Tx) error {
		err := tx.QueryRowContext(ctx, `SELECT number, epoch, start, bytes, first, lines FROM chunks
			WHERE batch = $1 AND state = 0 ORDER BY number LIMIT 1`+s.skipLocked, id).Scan(&c.Number, &c.Epoch, &c.Start, &c.Bytes, &c.First, &c.Lines)
		if err != nil {
			return noRows(err)
		}
		c.Epoch++
		return exec(ctx, tx, ErrLost, `UPDATE chunks SET state = 1, epoch = $3, renewals = 0 WHERE batch = $1 AND number = $2 AND epoch = $3 - 1`, id, c.Number, c.Epoch)
	})
	if err != nil {
		return c, fmt.Errorf("leasing a chunk of batch %s: %w", id, err)
	}
	return c, nil
}

// Save stores results of a leased chunk that are not stored yet, and renews the lease. executed is how many of them ran and gave an answer, failed
// how many ran and gave none that counts. It returns the status of the batch, which says whether further lines are to run.
func (s *Store) Save(ctx context.Context, c Chunk, results []Result, ran batch.Counts) (status batch.Status, err error) {
	err = s.transact(ctx, func(tx *sql.Tx) error {
		if err := exec(ctx, tx, ErrLost, `UPDATE chunks SET renewals = renewals + 1 WHERE batch = $1 AND number = $2 AND epoch = $3 AND state = 1`, c.Batch, c.Number, c.Epoch); err != nil {
			return err
		}
		if err := count(ctx, tx, c.Batch, ran, 0); err != nil {
			return err
		}
		if err := insertResults(ctx, tx, c, results); err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, `SELECT status FROM batches WHERE id = $1`, c.Batch).Scan(&status)
	})
	if err != nil {
		return "", fmt.Errorf("saving results of batch %s: %w", c.Batch, err)
	}
	return status, nil
}

// insertRows is how many results one statement stores: a database across a network takes a round trip for each.
const insertRows = 64

func insertResults(ctx context.Context, tx *sql.Tx, c Chunk, results []Result) error {
	for group := range slices.Chunk(results, insertRows) {
		statement := []byte(`INSERT INTO results (batch, line, chunk, ok, content) VALUES `)
		args := []any{c.Batch, c.Number}
		for i, r := range group {
			ok := 0
			if r.OK {
				ok = 1
			}
			if i > 0 {
				statement = append(statement, ',')
			}
			statement = fmt.Appendf(statement, "($1, $%d, $2, $%d, $%d)", len(args)+1, len(args)+2, len(args)+3)
			args = append(args, r.Line, ok, string(r.Text))
		}
		if _, err := tx.ExecContext(ctx, string(statement), args...); err != nil {
			return err
		}
	}
	return nil
}

// count adds to the counts of a batch.
func count(ctx context.Context, tx *sql.Tx, id string, ran batch.Counts, chunks int) error {
	if ran == (batch.Counts{}) && chunks == 0 {
		return nil
	}
	return exec(ctx, tx, ErrLost, `UPDATE batches SET done = done + $2, errors = errors + $3, open_chunks = open_chunks - $4 WHERE id = $1`, id, ran.Completed, ran.Failed, chunks)
}

// SavedLines returns the numbers of the lines of a chunk whose results are stored.
func (s *Store) SavedLines(ctx context.Context, c Chunk) (lines map[int64]bool, err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT line FROM results WHERE batch = $1 AND line >= $2 AND line < $3`, c.Batch, c.First, c.First+c.Lines)
	if err != nil {
		return nil, fmt.Errorf("reading results of batch %s: %w", c.Batch, err)
	}
	defer rows.Close()
	lines = map[int64]bool{}
	for rows.Next() {
		var line int64
		if err := rows.Scan(&line); err != nil {
			return nil, fmt.Errorf("reading results of batch %s: %w", c.Batch, err)
		}
		lines[line] = true
	}
	return lines, rows.Err()
}

// EachSaved calls each with the stored results of a chunk in the order of lines. The result is valid during the call only.
func (s *Store) EachSaved(ctx context.Context, c Chunk, each func(Result) error) error {
	rows, err := s.db.QueryContext(ctx, `SELECT line, ok, content FROM results WHERE batch = $1 AND line >= $2 AND line < $3 ORDER BY line`, c.Batch, c.First, c.First+c.Lines)
	if err != nil {
		return fmt.Errorf("reading results of batch %s: %w", c.Batch, err)
	}
	defer rows.Close()
	for rows.Next() {
		var r Result
		var ok int
		var text sql.RawBytes
		if err := rows.Scan(&r.Line, &ok, &text); err != nil {
			return fmt.Errorf("reading results of batch %s: %w", c.Batch, err)
		}
		r.OK, r.Text = ok == 1, text
		if err := each(r); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Finish stores the segments of a chunk, all of whose lines have a result, in place of the results, and counts those that no Save has counted.
func (s *Store) Finish(ctx context.Context, c Chunk, ran batch.Counts) error {
	err := s.transact(ctx, func(tx *sql.Tx) error {
		err := exec(ctx, tx, ErrLost, `UPDATE chunks SET state = 2, output = $4, output_bytes = $5, error_blob = $6, error_bytes = $7
			WHERE batch = $1 AND number = $2 AND epoch = $3 AND state = 1`, c.Batch, c.Number, c.Epoch, c.Output.Blob, c.Output.Bytes, c.ErrorOutput.Blob, c.ErrorOutput.Bytes)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM results WHERE batch = $1 AND line >= $2 AND line < $3`, c.Batch, c.First, c.First+c.Lines); err != nil {
			return err
		}
		return count(ctx, tx, c.Batch, ran, 1)
	})
	if err != nil {
		return fmt.Errorf("finishing a chunk of batch %s: %w", c.Batch, err)
	}
	return nil
}

// Release ends the lease of a chunk that is not finished.
func (s *Store) Release(ctx context.Context, c Chunk) error {
	_, err := s.db.ExecContext(ctx, `UPDATE chunks SET state = 0 WHERE batch = $1 AND number = $2 AND epoch = $3 AND state = 1`, c.Batch, c.Number, c.Epoch)
	if err != nil {
		return fmt.Errorf("releasing a chunk of batch %s: %w", c.Batch, err)
	}
	return nil
}

// Expire ends the window of a batch: no further lines run. It does nothing if the batch runs none already.
func (s *Store) Expire(ctx context.Context, id string, now int64) error {
	_, err := s.db.ExecContext(ctx, `UPDATE batches SET status = 'finalizing', finalizing = $2 WHERE id = $1 AND status = 'in_progress' AND expires <= $2`, id, now)
	if err == nil { // whose input file was never validated: it has no lines
		_, err = s.db.ExecContext(ctx, `UPDATE batches SET status = 'expired', expired = $2 WHERE id = $1 AND status = 'validating' AND expires <= $2`, id, now)
	}
	if err != nil {
		return fmt.Errorf("expiring batch %s: %w", id, err)
	}
	return nil
}

// End ends a batch all of whose chunks are done: its segments become its output and error file. It returns the batch. ErrLost: it has ended
// already, or has open chunks.
func (s *Store) End(ctx context.Context, id string, now int64) (b batch.Batch, err error) {
	err = s.transact(ctx, func(tx *sql.Tx) error {
		b, err = scanBatch(tx.QueryRowContext(ctx, `SELECT `+batchColumns+` FROM batches WHERE id = $1 AND open_chunks = 0 AND status IN ('in_progress', 'finalizing', 'cancelling')`+s.lockRow, id))
		if errors.Is(err, batch.ErrNotFound) {
			return ErrLost
		}
		if err != nil {
			return err
		}
		was := b.Status
		switch b.Status {
		case batch.Cancelling:
			b.Status, b.Times.Cancelled = batch.Cancelled, now
		case batch.Finalizing:
			b.Status, b.Times.Expired = batch.Expired, now
		default:
			b.Status, b.Times.Finalizing, b.Times.Completed = batch.Completed, now, now
		}
		if err := addOutputs(ctx, tx, &b, now); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM chunks WHERE batch = $1`, id); err != nil {
			return err
		}
		return exec(ctx, tx, ErrLost, `UPDATE batches SET status = $2, finalizing = $3, completed = $4, expired = $5, cancelled = $6, output = $7, error_file = $8 WHERE id = $1 AND status = $9`,
			id, b.Status, b.Times.Finalizing, b.Times.Completed, b.Times.Expired, b.Times.Cancelled, b.OutputFile, b.ErrorFile, was)
	})
	if err != nil {
		return b, fmt.Errorf("ending batch %s: %w", id, err)
	}
	return b, nil
}

// addOutputs makes the files of a batch from the segments of its chunks. A file without lines is not made.
func addOutputs(ctx context.Context, tx *sql.Tx, b *batch.Batch, now int64) error {
	rows, err := tx.QueryContext(ctx, `SELECT output, output_bytes, error_blob, error_bytes FROM chunks WHERE batch = $1 ORDER BY number`, b.ID)
	if err != nil {
		return err
	}
	defer rows.Close()
	var parts [2][]batch.Part
	var bytes [2]int64
	for rows.Next() {
		var p [2]batch.Part
		if err := rows.Scan(&p[0].Blob, &p[0].Bytes, &p[1].Blob, &p[1].Bytes); err != nil {
			return err
		}
		for i := range p {
			if p[i].Bytes > 0 {
				parts[i], bytes[i] = append(parts[i], p[i]), bytes[i]+p[i].Bytes
			}
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for i, id := range []*string{&b.OutputFile, &b.ErrorFile} {
		if bytes[i] == 0 {
			continue
		}
		*id = batch.NewID("file-")
		f := batch.File{ID: *id, Tenant: b.Tenant, Purpose: batch.PurposeOutput, Name: b.ID + []string{"_output.jsonl", "_error.jsonl"}[i], Bytes: bytes[i], Created: now}
		if b.OutputExpires > 0 {
			f.Expires = now + 1000*b.OutputExpires
		}
		if err := addFile(ctx, tx, f, parts[i]); err != nil {
			return err
		}
	}
	return nil
}
