package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"

	"modernc.org/sqlite" // also the driver "sqlite"

	"github.com/tandem-serving/tandem/batch"
)

// ErrLost is returned to a worker whose lease has passed to another one, or whose batch has ended.
var ErrLost = errors.New("the lease was lost")

// Store is a database of files and batches. It is safe for concurrent use.
type Store struct {
	db *sql.DB
	dialect
}

// dialect is how the statements of a database differ. SQLite has one writer at a time, which needs no locks of rows.
type dialect struct {
	lockSchema string // statement that has one process at a time change the tables; "": none
	lockRow    string // end of a query of a row that the transaction changes
	skipLocked string // likewise, of a row that no other transaction has locked
}

// connections is how many statements run at a time. SQLite writes with one; the others read.
const connections = 4

// OpenSQLite opens the database file, and makes it if there is none. A commit is durable when it returns. The directory of the file
// must exist, and belong to this process.
func OpenSQLite(ctx context.Context, file string) (*Store, error) {
	// SQLite makes its other files with the mode of this one.
	made, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = made.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	// Transactions take the write lock when they begin: one that reads first and writes later would fail if another has written
	// meanwhile, and waiting cannot help it.
	db, err := sql.Open("sqlite", "file:"+escapePath(file)+"?_pragma=busy_timeout(30000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	if err != nil {
		return nil, fmt.Errorf("opening the database: %w", err)
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	s := &Store{db: db}
	if err := s.migrate(ctx); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("opening the database %s: %w", file, err)
	}
	return s, nil
}

// escapePath escapes what has a meaning in a URI of SQLite.
func escapePath(path string) string {
	return strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
}

// Close closes the database.
func (s *Store) Close() error { return s.db.Close() }

// Ready reports whether the database answers.
func (s *Store) Ready(ctx context.Context) error {
	var one int
	if err := s.db.QueryRowContext(ctx, `SELECT 1`).Scan(&one); err != nil {
		return fmt.Errorf("asking the database: %w", err)
	}
	return nil
}

// transact runs f in a transaction, which f's error rolls back.
func (s *Store) transact(ctx context.Context, f func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback() // err is the reason
		return err
	}
	return tx.Commit()
}

// changed returns missing unless the statement has changed a row.
func changed(result sql.Result, err error, missing error) error {
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	if err == nil && n == 0 {
		return missing
	}
	return err
}

// Page is a part of a list.
type Page struct {
	After string // id of the last one seen; "": from the beginning
	Limit int
	Old   bool // oldest first, not newest first
}

// clause returns the end of a query of a table, whose columns created and id order it. Its parameters are $2 to $4, and those of args.
func (p Page) clause(table string) string {
	compare, order := "<", "DESC"
	if p.Old {
		compare, order = ">", "ASC"
	}
	where := ""
	if p.After != "" {
		where = ` AND (created, id) ` + compare + ` (SELECT created, id FROM ` + table + ` WHERE id = $3 AND tenant = $1)`
	}
	return where + ` ORDER BY created ` + order + `, id ` + order + ` LIMIT $2`
}

func (p Page) args(tenant string) []any {
	if p.After == "" {
		return []any{tenant, p.Limit}
	}
	return []any{tenant, p.Limit, p.After}
}

// noRows turns the driver's word for no row into batch.ErrNotFound, and that of PostgreSQL for an id that cannot exist.
func noRows(err error) error {
	if errors.Is(err, sql.ErrNoRows) || postgresCode(err) == notText {
		return batch.ErrNotFound
	}
	return err
}

// IsFull reports whether a statement failed because the disk is full.
func IsFull(err error) bool {
	const full = 13 // SQLITE_FULL
	var failed *sqlite.Error
	return errors.As(err, &failed) && failed.Code()&0xff == full || postgresCode(err) == diskFull
}
