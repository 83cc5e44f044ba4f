package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/blob"
	"github.com/tandem-serving/tandem/batch/store"
	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// data is where files and batches are: in a directory of this process, or in a database and a bucket.
type data struct {
	store *store.Store
	blobs batch.Blobs

	lock   *os.File     // of the directory
	bucket *blob.Bucket // nil: a directory
}

// open opens what the flags name.
func (k *keep) open(ctx context.Context, log *slog.Logger) (*data, error) {
	if !k.shared() {
		return openData(ctx, k.Data, log)
	}
	return openShared(ctx, k.Database, k.Bucket)
}

// openShared opens a database and a bucket.
func openShared(ctx context.Context, addressFile, bucket string) (*data, error) {
	address, err := boot.ReadLine(addressFile, "the address of the database")
	if err != nil {
		return nil, boot.Configf("database-file: %w", err)
	}
	d := &data{}
	if d.store, err = store.OpenPostgres(ctx, address); err != nil {
		return nil, boot.Missingf("--database-file: %w", err)
	}
	if d.bucket, err = blob.OpenBucket(ctx, bucket); err != nil {
		d.close()
		return nil, boot.Missingf("--bucket: %w", err)
	}
	d.blobs = d.bucket
	if err := d.claim(ctx, d.bucket); err != nil {
		d.close()
		return nil, boot.Missingf("--bucket: %w", err)
	}
	return d, nil
}

// openData opens the data directory, and clears away what an earlier process has left: leases, and files that nothing names.
func openData(ctx context.Context, dir string, log *slog.Logger) (*data, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, boot.Missingf("opening --data: %w", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, boot.Missingf("opening --data: %w", err)
	}
	d := &data{lock: lock}
	files, err := blob.Open(filepath.Join(dir, "files"))
	if err == nil {
		d.blobs = files
		d.store, err = store.OpenSQLite(ctx, filepath.Join(dir, "batch.db"))
	}
	if err == nil {
		err = d.claim(ctx, files)
	}
	if err == nil {
		err = errors.Join(d.store.Recover(ctx), d.sweep(ctx, files.Keys, log))
	}
	if err != nil {
		d.close()
		return nil, boot.Missingf("opening --data: %w", err)
	}
	return d, nil
}

// contents are the contents of files, of one database.
type contents interface {
	Owner(ctx context.Context) (string, error)
	Claim(ctx context.Context, id string) error
}

// claim takes the contents of files for the database, unless they are those of another one, whose sweep would delete this one's, and the other
// way round.
func (d *data) claim(ctx context.Context, of contents) error {
	id, claimed, err := d.store.Installation(ctx)
	if err != nil {
		return err
	}
	owner, err := of.Owner(ctx)
	if err == nil && owner == "" && !claimed {
		if err = of.Claim(ctx, id); err == nil {
			owner, err = of.Owner(ctx)
		}
	}
	switch {
	case err != nil:
		return err
	case owner == "":
		return errors.New("the contents of this database's files are elsewhere: name where they are, or move them here, with the object or file that names their database")
	case owner != id:
		return fmt.Errorf("the contents of files there belong to another database (its id is %s, and this one's %s): name that database, or another place", owner, id)
	case claimed:
		return nil
	}
	return d.store.SetClaimed(ctx)
}

// sweep deletes those of the keys that neither a file nor a chunk names: a process was killed after it had written their blobs.
func (d *data) sweep(ctx context.Context, keys func(each func(key string) error) error, log *slog.Logger) error {
	deleted := 0
	err := keys(func(key string) error {
		used, err := d.store.HasBlob(ctx, key)
		if err != nil || used {
			return err
		}
		deleted++
		return d.blobs.Delete(ctx, key)
	})
	if deleted > 0 {
		log.Info("deleted what an earlier process has left unfinished", "files", deleted)
	}
	return err
}

const (
	sweepEvery = 24 * time.Hour
	// sweepAge is how old a blob in the bucket must be before it counts as left: others have an upload or a chunk that they have not stored.
	sweepAge = 24 * time.Hour
)

// sweepBucket sweeps the bucket at the start and every day, until ctx ends.
func (d *data) sweepBucket(ctx context.Context, log *slog.Logger) {
	if d.bucket == nil {
		return
	}
	ticker := time.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		old := func(each func(key string) error) error { return d.bucket.Older(ctx, time.Now().Add(-sweepAge), each) }
		err := d.claim(ctx, d.bucket) // if another database has claimed it at the same time, the blobs may be that one's
		if err == nil {
			err = d.sweep(ctx, old, log)
		}
		if err != nil && ctx.Err() == nil {
			log.Warn("looking for files that nothing names", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// readyTimeout bounds the question whether the database answers.
const readyTimeout = 5 * time.Second

func (d *data) ready(ctx context.Context) error {
	if ctx.Err() != nil {
		return errors.New("draining")
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return d.store.Ready(ctx)
}

func (d *data) close() {
	if d.store != nil {
		_ = d.store.Close() // every commit is durable
	}
	if d.bucket != nil {
		_ = d.bucket.Close() // what was stored is durable
	}
	if d.lock != nil {
		_ = d.lock.Close() // releases the lock
	}
}
