package store

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/tandem-serving/tandem/batch"
)

// openStatuses are those of batches that have not ended.
const openStatuses = `('validating', 'in_progress', 'finalizing', 'cancelling')`

// lockTenant has transactions that change what a tenant uses run one after another, also on PostgreSQL.
func lockTenant(ctx context.Context, tx *sql.Tx, tenant string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO tenants (id) VALUES ($1) ON CONFLICT (id) DO UPDATE SET id = excluded.id`, tenant)
	return err
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// usage returns what a tenant uses. Lines of a batch that is not validated are those of its input file.
func usage(ctx context.Context, q querier, tenant string) (u batch.Amounts, err error) {
	err = q.QueryRowContext(ctx, `SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM files WHERE tenant = $1`, tenant).Scan(&u.Bytes)
	if err != nil {
		return u, err
	}
	err = q.QueryRowContext(ctx, `SELECT count(*), CAST(coalesce(sum(CASE WHEN batches.status = 'validating' THEN files.lines ELSE total - done - errors END), 0) AS BIGINT)
		FROM batches JOIN files ON files.id = batches.input WHERE batches.tenant = $1 AND status IN `+openStatuses, tenant).Scan(&u.Batches, &u.Lines)
	return u, err
}

// Usage returns what a tenant uses: bytes of its files, batches that have not ended, and their lines without a result.
func (s *Store) Usage(ctx context.Context, tenant string) (batch.Amounts, error) {
	u, err := usage(ctx, s.db, tenant)
	if err != nil {
		return u, fmt.Errorf("summing up what a tenant uses: %w", err)
	}
	return u, nil
}

// withinQuota returns a *batch.QuotaError if a tenant would use more than its quota with what it adds. It locks the tenant until the end of tx.
func withinQuota(ctx context.Context, tx *sql.Tx, tenant string, quota, added batch.Amounts) error {
	if quota == (batch.Amounts{}) {
		return nil
	}
	if err := lockTenant(ctx, tx, tenant); err != nil {
		return err
	}
	used, err := usage(ctx, tx, tenant)
	if err != nil {
		return err
	}
	return quota.Allow(used, added)
}
