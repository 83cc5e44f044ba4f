package blob_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/blob"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, root string) *blob.Dir {
	t.Helper()
	d, err := blob.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func write(t *testing.T, d *blob.Dir, text string) batch.BlobWriter {
	t.Helper()
	w, err := d.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	return w
}

func keys(t *testing.T, d *blob.Dir) (all []string) {
	t.Helper()
	if err := d.Keys(func(key string) error { all = append(all, key); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestBlob(t *testing.T) {
	root := filepath.Join(t.TempDir(), "new", "files")
	d := open(t, root)
	w := write(t, d, "0123456789")
	if found := keys(t, d); len(found) != 0 {
		t.Errorf("%q exist before Commit", found)
	}
	part, err := w.Commit()
	if err != nil || part.Bytes != 10 {
		t.Fatal(part, err)
	}
	w.Abort() // nothing is left to drop
	r, err := d.Open(t.Context(), part.Blob, 7)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil || string(text) != "789" {
		t.Errorf("from 7 on: %q, %v", text, err)
	}
	for range 2 {
		if err := d.Delete(t.Context(), part.Blob); err != nil {
			t.Error(err)
		}
	}
	if _, err := d.Open(t.Context(), part.Blob, 0); !errors.Is(err, batch.ErrNotFound) {
		t.Errorf("after Delete: %v", err)
	}
}

// What was not committed is gone: after Abort, and after the process was killed. The name of the directory is no pattern.
func TestUnfinished(t *testing.T) {
	root := filepath.Join(t.TempDir(), "files[1]")
	d := open(t, root)
	write(t, d, "aborted").Abort()
	write(t, d, "killed")
	kept, err := write(t, d, "kept").Commit()
	if err != nil {
		t.Fatal(err)
	}
	d = open(t, root)
	if found := keys(t, d); len(found) != 1 || found[0] != kept.Blob {
		t.Errorf("found %q, want %s", found, kept.Blob)
	}
	if files, err := os.ReadDir(root); err != nil || len(files) != 1 {
		t.Errorf("%d files, %v", len(files), err)
	}
}

// A key is no path.
func TestKeysArePlain(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "secret"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := open(t, filepath.Join(root, "files"))
	if _, err := d.Open(t.Context(), "../secret", 0); !errors.Is(err, batch.ErrNotFound) {
		t.Errorf("../secret: %v", err)
	}
}
