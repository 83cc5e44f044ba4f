package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/batch"
)

// Installation returns the id of the database, which stays the same, and whether contents of files have been claimed for it.
func (s *Store) Installation(ctx context.Context) (id string, claimed bool, err error) {
	err = s.transact(ctx, func(tx *sql.Tx) error {
		if s.lockSchema != "" { // of two processes that are the first, one makes the id
			if _, err := tx.ExecContext(ctx, s.lockSchema); err != nil {
				return err
			}
		}
		var has int64
		err := tx.QueryRowContext(ctx, `SELECT id, claimed FROM installation`).Scan(&id, &has)
		if claimed = has != 0; !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		id = batch.NewID("")
		_, err = tx.ExecContext(ctx, `INSERT INTO installation (id, claimed) VALUES ($1, 0)`, id)
		return err
	})
	if err != nil {
		return "", false, fmt.Errorf("reading the id of the database: %w", err)
	}
	return id, claimed, nil
}

// SetClaimed notes that contents of files have been claimed for the database.
func (s *Store) SetClaimed(ctx context.Context) error {
	if _, err := s.db.ExecContext(ctx, `UPDATE installation SET claimed = 1`); err != nil {
		return fmt.Errorf("storing whose files are those of the database: %w", err)
	}
	return nil
}
