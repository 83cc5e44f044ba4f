package blob_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	cdk "gocloud.dev/blob"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/blob"
	"github.com/tandem-serving/tandem/e2e/s3"
)

// TestBucket stores, reads, lists and deletes blobs on a real server of S3's protocol.
func TestBucket(t *testing.T) {
	server := s3.Start(t)
	s3.SetCredentials(t)
	address := server.Bucket(t, "batches") + "&prefix=tandem/"
	b, err := blob.OpenBucket(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	large := bytes.Repeat([]byte("0123456789abcdef"), 13<<20/16) // three parts
	for name, content := range map[string][]byte{"small": []byte("content"), "empty": nil, "large": large} {
		part := store(t, b, content)
		if part.Bytes != int64(len(content)) {
			t.Errorf("%s has %d bytes, want %d", name, part.Bytes, len(content))
		}
		for _, offset := range []int{0, len(content) / 2} {
			if got := read(t, b, part.Blob, offset); !bytes.Equal(got, content[offset:]) {
				t.Errorf("%s from %d: %d bytes, want %d", name, offset, len(got), len(content)-offset)
			}
		}
	}
	for name, give := range map[string]func(batch.BlobWriter, context.CancelFunc){
		"aborted": func(w batch.BlobWriter, _ context.CancelFunc) { w.Abort() },
		"whose caller went": func(w batch.BlobWriter, cancel context.CancelFunc) {
			cancel()
			if _, err := w.Commit(); err == nil {
				t.Error("a blob was stored after its context had ended")
			}
			w.Abort()
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		w, err := b.Create(ctx)
		if err == nil {
			_, err = w.Write(large)
		}
		if err != nil {
			t.Fatal(name, err)
		}
		give(w, cancel)
		cancel()
	}
	put(t, address, "another program's")
	keys := func(than time.Time) (all []string) {
		t.Helper()
		if err := b.Older(t.Context(), than, func(key string) error { all = append(all, key); return nil }); err != nil {
			t.Fatal(err)
		}
		return all
	}
	if old := keys(time.Now().Add(-time.Hour)); len(old) != 0 {
		t.Errorf("%d blobs are an hour old", len(old))
	}
	all := keys(time.Now().Add(time.Hour))
	if len(all) != 3 {
		t.Errorf("%d blobs, want 3: neither an unfinished one nor another program's object is one", len(all))
	}
	for _, key := range append(all, all...) { // a second time there is none
		if err := b.Delete(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
	if _, err := b.Open(t.Context(), all[0], 0); !errors.Is(err, batch.ErrNotFound) {
		t.Errorf("a deleted blob: %v", err)
	}
	if _, err := blob.OpenBucket(t.Context(), strings.Replace(server.Bucket(t, "other"), "other", "missing", 1)); err == nil {
		t.Error("a bucket that does not exist was opened")
	}
}

// put stores an object into a bucket that is no blob.
func put(t *testing.T, address, key string) {
	t.Helper()
	b, err := cdk.OpenBucket(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.WriteAll(t.Context(), key, []byte("content"), nil), b.Close()); err != nil {
		t.Fatal(err)
	}
}

func store(t *testing.T, b *blob.Bucket, content []byte) batch.Part {
	t.Helper()
	w, err := b.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	part, err := w.Commit()
	if err != nil {
		t.Fatal(err)
	}
	return part
}

func read(t *testing.T, b *blob.Bucket, key string, offset int) []byte {
	t.Helper()
	from, err := b.Open(t.Context(), key, int64(offset))
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(from)
	if err = errors.Join(err, from.Close()); err != nil {
		t.Fatal(err)
	}
	return content
}

func TestBucketAddress(t *testing.T) {
	for address, ok := range map[string]bool{"s3://batches?region=eu-west-1": true, "s3://b?endpoint=https://minio:9000&use_path_style=true": true,
		"": false, "batches": false, "gs://batches": false, "s3://": false, "s3://key:secret@batches": false} {
		if err := blob.CheckAddress(address); (err == nil) != ok {
			t.Errorf("%q: %v", address, err)
		}
	}
}
