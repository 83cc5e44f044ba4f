package store

import (
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// TestMigrate: a database of the first version, which has no number, keeps what it holds; one of a newer version is refused.
func TestMigrate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "batch.db")
	first, err := migrations.ReadFile("migrations/1.sql")
	if err != nil {
		t.Fatal(err)
	}
	run := func(statement string) {
		t.Helper()
		db, err := sql.Open("sqlite", file)
		if err == nil {
			_, err = db.ExecContext(t.Context(), statement)
			err = errors.Join(err, db.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	run(string(first) + `; INSERT INTO files VALUES ('f', 't', 'batch', 'in.jsonl', 5, 1, 0)`)
	for range 2 {
		s, err := OpenSQLite(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		if f, err := s.File(t.Context(), "t", "f"); err != nil || f.Bytes != 5 || f.Lines != 0 {
			t.Errorf("%+v, %v", f, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	run(`INSERT INTO schema_version VALUES (1000)`)
	if _, err := OpenSQLite(t.Context(), file); err == nil || !strings.Contains(err.Error(), "newer version") {
		t.Errorf("%v, want a refusal", err)
	}
}
