package store

import (
	"context"
	"fmt"

	"github.com/tandem-serving/tandem/batch"
)

// Notice is a batch that has ended, of whose end its webhook is to tell.
type Notice struct {
	Batch  string
	Status batch.Status
	Ended  int64 // Unix milliseconds
	Tries  int64 // that have failed
	due    int64
}

// Notices returns up to so many notices that are due, of batches that ended since a time.
func (s *Store) Notices(ctx context.Context, now, since int64, most int) (due []Notice, err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT id, status, failed + completed + expired + cancelled, notify_tries, notify_at FROM batches
		WHERE notify_at >= 0 AND notify_at <= $1 AND status IN ('failed', 'completed', 'expired', 'cancelled') AND failed + completed + expired + cancelled >= $2
		ORDER BY notify_at, id LIMIT $3`, now, since, most)
	if err != nil {
		return nil, fmt.Errorf("looking for batches that have ended: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var n Notice
		if err := rows.Scan(&n.Batch, &n.Status, &n.Ended, &n.Tries, &n.due); err != nil {
			return nil, fmt.Errorf("looking for batches that have ended: %w", err)
		}
		due = append(due, n)
	}
	return due, rows.Err()
}

// TakeNotice counts a try, after which the notice is due again at a time. ErrLost: another process has taken it.
func (s *Store) TakeNotice(ctx context.Context, n Notice, again int64) error {
	result, err := s.db.ExecContext(ctx, `UPDATE batches SET notify_at = $4, notify_tries = notify_tries + 1 WHERE id = $1 AND notify_at = $2 AND notify_tries = $3`, n.Batch, n.due, n.Tries, again)
	if err := changed(result, err, ErrLost); err != nil {
		return fmt.Errorf("taking the notice of batch %s: %w", n.Batch, err)
	}
	return nil
}

// EndNotice has no further notice sent of a batch.
func (s *Store) EndNotice(ctx context.Context, id string) error {
	if _, err := s.db.ExecContext(ctx, `UPDATE batches SET notify_at = -1 WHERE id = $1`, id); err != nil {
		return fmt.Errorf("ending the notice of batch %s: %w", id, err)
	}
	return nil
}
