package store

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/tandem-serving/tandem/batch"
)

const fileColumns = `id, tenant, purpose, name, bytes, lines, created, expires`

func scanFile(row interface{ Scan(...any) error }) (f batch.File, err error) {
	err = row.Scan(&f.ID, &f.Tenant, &f.Purpose, &f.Name, &f.Bytes, &f.Lines, &f.Created, &f.Expires)
	return f, noRows(err)
}

// AddFile stores a file that is made of parts. The error is a *batch.QuotaError if its tenant would have more than quota allows.
func (s *Store) AddFile(ctx context.Context, f batch.File, quota batch.Amounts, parts ...batch.Part) error {
	err := s.transact(ctx, func(tx *sql.Tx) error {
		if err := withinQuota(ctx, tx, f.Tenant, quota, batch.Amounts{Bytes: f.Bytes}); err != nil {
			return err
		}
		return addFile(ctx, tx, f, parts)
	})
	if err != nil {
		return fmt.Errorf("storing file %s: %w", f.ID, err)
	}
	return nil
}

func addFile(ctx context.Context, tx *sql.Tx, f batch.File, parts []batch.Part) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO files (`+fileColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		f.ID, f.Tenant, f.Purpose, f.Name, f.Bytes, f.Lines, f.Created, f.Expires)
	for i := 0; err == nil && i < len(parts); i++ {
		_, err = tx.ExecContext(ctx, `INSERT INTO parts (file, number, blob, bytes) VALUES ($1, $2, $3, $4)`, f.ID, i, parts[i].Blob, parts[i].Bytes)
	}
	return err
}

// File returns a file of a tenant, or batch.ErrNotFound.
func (s *Store) File(ctx context.Context, tenant, id string) (batch.File, error) {
	f, err := scanFile(s.db.QueryRowContext(ctx, `SELECT `+fileColumns+` FROM files WHERE id = $1 AND tenant = $2`, id, tenant))
	if err != nil {
		return f, fmt.Errorf("looking for file %s: %w", id, err)
	}
	return f, nil
}

// Files returns files of a tenant, those of one purpose if it is not empty.
func (s *Store) Files(ctx context.Context, tenant, purpose string, p Page) (files []batch.File, err error) {
	where, args := "", p.args(tenant)
	if purpose != "" {
		args = append(args, purpose)
		where = fmt.Sprintf(` AND purpose = $%d`, len(args))
	}
	rows, err := s.db.QueryContext(ctx, `SELECT `+fileColumns+` FROM files WHERE tenant = $1`+where+p.clause("files"), args...)
	if postgresCode(err) == notText {
		return nil, nil // there is no such purpose
	}
	if err != nil {
		return nil, fmt.Errorf("listing files: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		f, err := scanFile(rows)
		if err != nil {
			return nil, fmt.Errorf("listing files: %w", err)
		}
		files = append(files, f)
	}
	return files, rows.Err()
}

// Parts returns what a file is made of, in order.
func (s *Store) Parts(ctx context.Context, file string) (parts []batch.Part, err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT blob, bytes FROM parts WHERE file = $1 ORDER BY number`, file)
	if err != nil {
		return nil, fmt.Errorf("reading the parts of file %s: %w", file, err)
	}
	defer rows.Close()
	for rows.Next() {
		var p batch.Part
		if err := rows.Scan(&p.Blob, &p.Bytes); err != nil {
			return nil, fmt.Errorf("reading the parts of file %s: %w", file, err)
		}
		parts = append(parts, p)
	}
	return parts, rows.Err()
}

// DeleteFile deletes a file of a tenant, and returns the parts whose blobs nothing needs any more. The error is batch.ErrNotFound, or
// batch.ErrInUse for the input file of a batch that has not ended.
func (s *Store) DeleteFile(ctx context.Context, tenant, id string) (parts []batch.Part, err error) {
	if parts, err = s.Parts(ctx, id); err != nil {
		return nil, noRows(err)
	}
	err = s.transact(ctx, func(tx *sql.Tx) error {
		// First, so that other tenants do not learn that the file is in use.
		if err := exec(ctx, tx, batch.ErrNotFound, `DELETE FROM files WHERE id = $1 AND tenant = $2`, id, tenant); err != nil {
			return err
		}
		var users int
		err := tx.QueryRowContext(ctx, `SELECT count(*) FROM batches WHERE input = $1 AND status IN `+openStatuses, id).Scan(&users)
		if err != nil {
			return err
		}
		if users > 0 {
			return batch.ErrInUse
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM parts WHERE file = $1`, id)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("deleting file %s: %w", id, err)
	}
	return parts, nil
}

// ExpiredFiles returns at most limit files whose time has passed, those that expired first. Input files of batches that have not ended are not
// among them.
func (s *Store) ExpiredFiles(ctx context.Context, now int64, limit int) (files []batch.File, err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT `+fileColumns+` FROM files WHERE expires > 0 AND expires <= $1
		AND NOT EXISTS (SELECT 1 FROM batches WHERE input = files.id AND status IN `+openStatuses+`) ORDER BY expires, id LIMIT $2`, now, limit)
	if err != nil {
		return nil, fmt.Errorf("listing expired files: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		f, err := scanFile(rows)
		if err != nil {
			return nil, fmt.Errorf("listing expired files: %w", err)
		}
		files = append(files, f)
	}
	return files, rows.Err()
}

// HasBlob reports whether a file or a chunk is made of a blob.
func (s *Store) HasBlob(ctx context.Context, key string) (bool, error) {
	var uses int
	err := s.db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM parts WHERE blob = $1) + (SELECT count(*) FROM chunks WHERE output = $1 OR error_blob = $1)`, key).Scan(&uses)
	if err != nil {
		return false, fmt.Errorf("looking for blob %s: %w", key, err)
	}
	return uses > 0, nil
}

// exec runs a statement that must change a row, else it returns missing.
func exec(ctx context.Context, tx *sql.Tx, missing error, statement string, args ...any) error {
	result, err := tx.ExecContext(ctx, statement, args...)
	return changed(result, err, missing)
}
