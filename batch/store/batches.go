package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/tandem-serving/tandem/batch"
)

const batchColumns = `id, tenant, endpoint, model, input, output, error_file, span, status, created, in_progress, expires, finalizing, completed,
	failed, expired, cancelling, cancelled, total, done, errors, metadata, problems, output_expires`

func scanBatch(row interface{ Scan(...any) error }, more ...any) (b batch.Batch, err error) {
	var metadata, problems string
	t, c := &b.Times, &b.Counts
	err = row.Scan(append([]any{&b.ID, &b.Tenant, &b.Endpoint, &b.Model, &b.InputFile, &b.OutputFile, &b.ErrorFile, &b.Window, &b.Status, &t.Created, &t.InProgress,
		&t.Expires, &t.Finalizing, &t.Completed, &t.Failed, &t.Expired, &t.Cancelling, &t.Cancelled, &c.Total, &c.Completed, &c.Failed, &metadata, &problems, &b.OutputExpires}, more...)...)
	if err != nil {
		return b, noRows(err)
	}
	if err := json.Unmarshal([]byte(metadata), &b.Metadata); err != nil {
		return b, fmt.Errorf("reading the metadata of batch %s: %w", b.ID, err)
	}
	if err := json.Unmarshal([]byte(problems), &b.Problems); err != nil {
		return b, fmt.Errorf("reading the problems of batch %s: %w", b.ID, err)
	}
	return b, nil
}

// AddBatch stores a batch whose input file is to be validated. The error is batch.ErrNotFound if the tenant has no such file, and a
// *batch.QuotaError if it would have more than quota allows.
func (s *Store) AddBatch(ctx context.Context, b batch.Batch, quota batch.Amounts) error {
	metadata, err := json.Marshal(b.Metadata)
	if err != nil {
		return fmt.Errorf("storing batch %s: %w", b.ID, err)
	}
	err = s.transact(ctx, func(tx *sql.Tx) error {
		// The row of the file is locked by PostgreSQL, so that the file is not deleted meanwhile.
		var added batch.Amounts
		err := tx.QueryRowContext(ctx, `UPDATE files SET id = id WHERE id = $1 AND tenant = $2 RETURNING lines`, b.InputFile, b.Tenant).Scan(&added.Lines)
		if err != nil {
			return noRows(err)
		}
		added.Batches = 1
		if err := withinQuota(ctx, tx, b.Tenant, quota, added); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO batches (`+batchColumns+`, open_chunks, epoch, renewals)
			VALUES ($1, $2, $3, '', $4, '', '', $5, 'validating', $6, 0, $7, 0, 0, 0, 0, 0, 0, 0, 0, 0, $8, 'null', $9, 0, 0, 0)`,
			b.ID, b.Tenant, b.Endpoint, b.InputFile, b.Window, b.Times.Created, b.Times.Expires, string(metadata), b.OutputExpires)
		return err
	})
	if err != nil {
		return fmt.Errorf("storing batch %s: %w", b.ID, err)
	}
	return nil
}

// Batch returns a batch of a tenant, or batch.ErrNotFound.
func (s *Store) Batch(ctx context.Context, tenant, id string) (batch.Batch, error) {
	b, err := scanBatch(s.db.QueryRowContext(ctx, `SELECT `+batchColumns+` FROM batches WHERE id = $1 AND tenant = $2`, id, tenant))
	if err != nil {
		return b, fmt.Errorf("looking for batch %s: %w", id, err)
	}
	return b, nil
}

// Batches returns batches of a tenant.
func (s *Store) Batches(ctx context.Context, tenant string, p Page) (batches []batch.Batch, err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT `+batchColumns+` FROM batches WHERE tenant = $1`+p.clause("batches"), p.args(tenant)...)
	if err != nil {
		return nil, fmt.Errorf("listing batches: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		b, err := scanBatch(rows)
		if err != nil {
			return nil, fmt.Errorf("listing batches: %w", err)
		}
		batches = append(batches, b)
	}
	return batches, rows.Err()
}

// Cancel cancels a batch of a tenant, and returns it. A batch that is not validated yet is cancelled at once, others when workers have
// closed their chunks. The error is batch.ErrNotFound, or batch.ErrEnded; cancelling twice is no error.
func (s *Store) Cancel(ctx context.Context, tenant, id string, now int64) (b batch.Batch, err error) {
	err = s.transact(ctx, func(tx *sql.Tx) error {
		if b, err = scanBatch(tx.QueryRowContext(ctx, `SELECT `+batchColumns+` FROM batches WHERE id = $1 AND tenant = $2`+s.lockRow, id, tenant)); err != nil {
			return err
		}
		switch {
		case b.Status.Ended():
			return batch.ErrEnded
		case b.Status == batch.Validating:
			b.Status, b.Times.Cancelled = batch.Cancelled, now
		case b.Status == batch.InProgress:
			b.Status = batch.Cancelling
		default:
			return nil
		}
		b.Times.Cancelling = now
		_, err := tx.ExecContext(ctx, `UPDATE batches SET status = $2, cancelling = $3, cancelled = $4 WHERE id = $1`, id, b.Status, now, b.Times.Cancelled)
		return err
	})
	if err != nil {
		return b, fmt.Errorf("cancelling batch %s: %w", id, err)
	}
	return b, nil
}

// Count returns the number of batches in each status.
func (s *Store) Count(ctx context.Context) (map[batch.Status]int, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT status, count(*) FROM batches GROUP BY status`)
	if err != nil {
		return nil, fmt.Errorf("counting batches: %w", err)
	}
	defer rows.Close()
	counts := map[batch.Status]int{}
	for rows.Next() {
		var status batch.Status
		var n int
		if err := rows.Scan(&status, &n); err != nil {
			return nil, fmt.Errorf("counting batches: %w", err)
		}
		counts[status] = n
	}
	return counts, rows.Err()
}

// DeleteBatches deletes batches that ended before a time, and whose output and error files are deleted. It returns how many.
func (s *Store) DeleteBatches(ctx context.Context, before int64) (int64, error) {
	result, err := s.db.ExecContext(ctx, `DELETE FROM batches WHERE status IN ('failed', 'completed', 'expired', 'cancelled') AND failed + completed + expired + cancelled < $1
		AND NOT EXISTS (SELECT 1 FROM files WHERE id = batches.output OR id = batches.error_file)`, before)
	if err != nil {
		return 0, fmt.Errorf("deleting old batches: %w", err)
	}
	return result.RowsAffected()
}
