package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tandem-serving/tandem/batch"
)

const (
	// unfinished is the ending of files that are not blobs yet.
	unfinished = ".tmp"
	// ownerFile names the database that blobs belong to. It is not a key: these are longer.
	ownerFile = "database"
)

// Dir is a directory of blobs.
type Dir struct{ root string }

// Open opens a directory, makes it if there is none, and removes what a process that was killed has not finished.
func Open(root string) (*Dir, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("making the directory of files: %w", err)
	}
	if err := syncDir(filepath.Dir(root)); err != nil {
		return nil, fmt.Errorf("making the directory of files: %w", err)
	}
	files, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("listing the directory of files: %w", err)
	}
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), unfinished) {
			continue
		}
		if err := os.Remove(filepath.Join(root, file.Name())); err != nil {
			return nil, fmt.Errorf("removing an unfinished file: %w", err)
		}
	}
	return &Dir{root}, nil
}

// Writer writes one blob. End it with Commit or Abort.
type Writer struct {
	dir   *Dir
	key   string
	file  *os.File
	bytes int64
}

// Create begins a blob. The context is not used: a directory does not wait.
func (d *Dir) Create(context.Context) (batch.BlobWriter, error) {
	w, err := d.create(batch.NewID(""))
	if err != nil {
		return nil, err // not w, which would be an interface that is not nil
	}
	return w, nil
}

func (d *Dir) create(key string) (*Writer, error) {
	file, err := os.OpenFile(d.path(key)+unfinished, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("creating a file: %w", err)
	}
	return &Writer{dir: d, key: key, file: file}, nil
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	n, err := w.file.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Commit makes the blob durable.
func (w *Writer) Commit() (batch.Part, error) {
	err := w.file.Sync()
	if err = errors.Join(err, w.file.Close()); err == nil {
		err = os.Rename(w.file.Name(), w.dir.path(w.key))
	}
	if err == nil {
		err = syncDir(w.dir.root)
	}
	if err != nil {
		_ = os.Remove(w.file.Name()) // Open removes it otherwise
		return batch.Part{}, fmt.Errorf("storing a file: %w", err)
	}
	return batch.Part{Blob: w.key, Bytes: w.bytes}, nil
}

// Abort drops what was written. After Commit it does nothing.
func (w *Writer) Abort() {
	if w.file.Close() == nil {
		_ = os.Remove(w.file.Name()) // Open removes it otherwise
	}
}

// syncDir makes the names in a directory durable.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Open returns a reader of a blob from an offset on. batch.ErrNotFound is returned for a key without a blob.
func (d *Dir) Open(_ context.Context, key string, offset int64) (io.ReadCloser, error) {
	file, err := os.Open(d.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("opening blob %s: %w", key, batch.ErrNotFound)
	}
	if err == nil && offset > 0 {
		_, err = file.Seek(offset, io.SeekStart)
	}
	if err != nil {
		return nil, fmt.Errorf("opening blob %s: %w", key, err)
	}
	return file, nil
}

// Delete deletes a blob. It is no error if there is none.
func (d *Dir) Delete(_ context.Context, key string) error {
	if err := os.Remove(d.path(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("deleting blob %s: %w", key, err)
	}
	return nil
}

// Keys calls each with the key of every blob, until it returns an error.
func (d *Dir) Keys(each func(key string) error) error {
	dir, err := os.Open(d.root)
	if err != nil {
		return fmt.Errorf("listing blobs: %w", err)
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1000)
		for _, name := range names {
			if strings.HasSuffix(name, unfinished) || name == ownerFile {
				continue
			}
			if err := each(name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("listing blobs: %w", err)
		}
	}
}

// Owner returns the id of the database that the blobs belong to; "": they were never claimed.
func (d *Dir) Owner(context.Context) (string, error) {
	id, err := os.ReadFile(d.path(ownerFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading whose the files are: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}

// Claim notes the id of the database that the blobs belong to.
func (d *Dir) Claim(_ context.Context, id string) error {
	w, err := d.create(ownerFile)
	if err != nil {
		return err
	}
	defer w.Abort()
	if _, err := w.Write([]byte(id + "\n")); err != nil {
		return fmt.Errorf("storing whose the files are: %w", err)
	}
	_, err = w.Commit()
	return err
}

func (d *Dir) path(key string) string { return filepath.Join(d.root, filepath.Base(key)) }
