package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
)

// migrations are the steps from an empty database to the present tables, 1.sql first. Released steps never change; a change of the
// tables is a further one.
//
//go:embed migrations
var migrations embed.FS

// schemaVersion is the number of the last step.
const schemaVersion = 5

// migrate brings the tables to schemaVersion, each step in a transaction of its own. A database of a newer version is refused.
func (s *Store) migrate(ctx context.Context) error {
	for {
		var version int
		err := s.transact(ctx, func(tx *sql.Tx) error {
			if s.lockSchema != "" {
				if _, err := tx.ExecContext(ctx, s.lockSchema); err != nil {
					return err
				}
			}
			// The first step can run on the tables of its own version, which have no row here.
			if _, err := tx.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL PRIMARY KEY)`); err != nil {
				return err
			}
			if err := tx.QueryRowContext(ctx, `SELECT coalesce(max(version), 0) FROM schema_version`).Scan(&version); err != nil || version >= schemaVersion {
				return err
			}
			step, err := migrations.ReadFile(fmt.Sprintf("migrations/%d.sql", version+1))
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, string(step)); err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO schema_version (version) VALUES ($1)`, version+1)
			return err
		})
		switch {
		case err != nil:
			return fmt.Errorf("changing the tables to version %d: %w", version+1, err)
		case version > schemaVersion:
			return fmt.Errorf("the database has the tables of a newer version of this program (%d, not %d): run that one", version, schemaVersion)
		case version == schemaVersion:
			return nil
		}
	}
}
