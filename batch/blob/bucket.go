package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/s3blob" // for s3:// addresses
	"gocloud.dev/gcerrors"

	"github.com/tandem-serving/tandem/batch"
)

// partBytes is how much of a blob is sent at a time, and is in memory for each blob that is written: the least that S3 allows.
const partBytes = 5 << 20

const (
	// keyPrefix begins the keys of blobs in a bucket, which may have other objects too.
	keyPrefix = "tandem-batch_"
	// ownerKey is the object that names the database that blobs belong to.
	ownerKey = "tandem-batch-database"
	// maxOwner is the longest id of a database in bytes.
	maxOwner = 1000
)

// Bucket is a bucket of an S3-compatible store, which processes on several machines may share.
type Bucket struct{ bucket *blob.Bucket }

// OpenBucket opens a bucket that exists. The address is one of Go CDK, such as s3://batches?region=eu-west-1&prefix=tandem/, with
// endpoint=https://… and use_path_style=true for a store that is not Amazon's. Credentials are those of the environment, as AWS's tools
// find them.
func OpenBucket(ctx context.Context, address string) (*Bucket, error) {
	if err := CheckAddress(address); err != nil {
		return nil, err
	}
	opened, err := blob.OpenBucket(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("opening the bucket: %w", err)
	}
	// A wrong name, or a key without rights, is told at the start.
	if _, err := opened.List(nil).Next(ctx); err != nil && !errors.Is(err, io.EOF) {
		_ = opened.Close()
		return nil, fmt.Errorf("listing the bucket: %w", err)
	}
	return &Bucket{opened}, nil
}

// CheckAddress reports what is wrong with the address of a bucket.
func CheckAddress(address string) error {
	at, err := url.Parse(address)
	if err != nil || at.Scheme != "s3" || at.Host == "" || at.User != nil {
		return errors.New("the bucket is not an address like s3://batches?region=eu-west-1")
	}
	return nil
}

// Close closes the bucket.
func (b *Bucket) Close() error { return b.bucket.Close() }

// Create implements batch.Blobs.
func (b *Bucket) Create(ctx context.Context) (batch.BlobWriter, error) {
	// Go CDK drops what was written when its context ends before Close.
	ctx, cancel := context.WithCancel(ctx)
	key := batch.NewID(keyPrefix)
	to, err := b.bucket.NewWriter(ctx, key, &blob.WriterOptions{BufferSize: partBytes, MaxConcurrency: 1, ContentType: "application/jsonl"})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("creating blob %s: %w", key, err)
	}
	return &objectWriter{to: to, cancel: cancel, key: key}, nil
}

// objectWriter writes one object.
type objectWriter struct {
	to     *blob.Writer
	cancel context.CancelFunc
	key    string
	bytes  int64
	closed bool
}

// Write implements io.Writer.
func (w *objectWriter) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Commit implements batch.BlobWriter.
func (w *objectWriter) Commit() (batch.Part, error) {
	defer w.cancel()
	w.closed = true
	if err := w.to.Close(); err != nil {
		return batch.Part{}, fmt.Errorf("storing blob %s: %w", w.key, err)
	}
	return batch.Part{Blob: w.key, Bytes: w.bytes}, nil
}

// Abort implements batch.BlobWriter.
func (w *objectWriter) Abort() {
	w.cancel()
	if !w.closed {
		w.closed = true
		_ = w.to.Close() // its context has ended: that is the error
	}
}

// Open implements batch.Blobs.
func (b *Bucket) Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	from, err := b.bucket.NewRangeReader(ctx, key, offset, -1, nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, fmt.Errorf("opening blob %s: %w", key, batch.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("opening blob %s: %w", key, err)
	}
	return from, nil
}

// Delete implements batch.Blobs.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	if err := b.bucket.Delete(ctx, key); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return fmt.Errorf("deleting blob %s: %w", key, err)
	}
	return nil
}

// Owner returns the id of the database that the blobs belong to; "": they were never claimed.
func (b *Bucket) Owner(ctx context.Context) (string, error) {
	from, err := b.bucket.NewRangeReader(ctx, ownerKey, 0, maxOwner, nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading whose the bucket is: %w", err)
	}
	defer from.Close()
	id, err := io.ReadAll(from)
	if err != nil {
		return "", fmt.Errorf("reading whose the bucket is: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}

// Claim notes the id of the database that the blobs belong to. Of two databases that claim a bucket at the same time, the later one has it: not
// every store that speaks S3's protocol can write an object only if there is none.
func (b *Bucket) Claim(ctx context.Context, id string) error {
	if err := b.bucket.WriteAll(ctx, ownerKey, []byte(id+"\n"), &blob.WriterOptions{ContentType: "text/plain"}); err != nil {
		return fmt.Errorf("storing whose the bucket is: %w", err)
	}
	return nil
}

// Older calls each with the key of every blob that was stored before a time, until it returns an error. Other objects are left out.
func (b *Bucket) Older(ctx context.Context, than time.Time, each func(key string) error) error {
	for all := b.bucket.List(&blob.ListOptions{Prefix: keyPrefix}); ; {
		object, err := all.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("listing the bucket: %w", err)
		case object.IsDir || !object.ModTime.Before(than):
			continue
		}
		if err := each(object.Key); err != nil {
			return err
		}
	}
}
