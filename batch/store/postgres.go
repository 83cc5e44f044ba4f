package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

const (
	// postgresConnections is how many statements of a process run at a time: chunks that save, API calls, and the search for work.
	postgresConnections = 16
	// postgresIdle is how long an unused connection is kept, so that a failover of the database is noticed.
	postgresIdle = 5 * time.Minute
	// schemaLock is the key of the advisory lock under which tables are changed; any number that other programs do not use.
	schemaLock = 7_382_961_402
)

// SQLSTATE codes of PostgreSQL.
const (
	diskFull = "53100"
	notText  = "22021" // a text with a NUL, or that is not UTF-8, neither of which a column can have
)

// OpenPostgres opens a database of PostgreSQL, which processes on several machines may share, and makes or changes its tables. The address is a
// URL or a list of keywords, as libpq has them; the user needs the right to create tables.
func OpenPostgres(ctx context.Context, address string) (*Store, error) {
	config, err := pgx.ParseConfig(address)
	if err != nil { // the text of the error may have the password
		return nil, errors.New("opening the database: its address is not one like postgres://user:password@host:5432/name")
	}
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(postgresConnections)
	db.SetMaxIdleConns(postgresConnections)
	db.SetConnMaxIdleTime(postgresIdle)
	s := &Store{db: db, dialect: dialect{
		lockSchema: fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", schemaLock),
		lockRow:    " FOR UPDATE",
		skipLocked: " FOR UPDATE SKIP LOCKED",
	}}
	if err := s.migrate(ctx); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("opening the database %s on %s: %w", config.Database, config.Host, err)
	}
	return s, nil
}

// postgresCode returns the SQLSTATE of an error; "": it is not one of PostgreSQL's.
func postgresCode(err error) string {
	var failed *pgconn.PgError
	if errors.As(err, &failed) {
		return failed.Code
	}
	return ""
}
