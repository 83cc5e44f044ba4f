package main

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/batch/upstream"
	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
	"github.com/tandem-serving/tandem/e2e/postgres"
	"github.com/tandem-serving/tandem/e2e/s3"
)

func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"batch": func() { boot.Main(run) }})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }

// TestUpstreamFlags: every flag about the upstream reaches the client, and the key is read from its file.
func TestUpstreamFlags(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := defaults()
	_, err := program.Load(boot.IO{Name: "batch"}, &cfg, []string{"--data=d", "--upstream=https://gateway:8443/v1", "--upstream-key-file=" + key,
		"--objective=night", "--max-inflight=7", "--request-timeout=8s"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := cfg.Upstream.config(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if got.URL.String() != "https://gateway:8443/v1" {
		t.Errorf("URL %s", got.URL)
	}
	got.URL, got.TLS = nil, nil
	if want := (upstream.Config{Key: "secret", Objective: "night", InFlight: 7, Timeout: 8 * time.Second}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestOpenDataSweeps: a start deletes contents of files that the database does not name.
func TestOpenDataSweeps(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	var said strings.Builder
	log := (&boot.Log{}).New(boot.IO{Name: "batch", Stderr: &said})
	d, err := openData(t.Context(), dir, log)
	if err != nil {
		t.Fatal(err)
	}
	w, err := d.blobs.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	d.close()
	if d, err = openData(t.Context(), dir, log); err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if left, err := os.ReadDir(filepath.Join(dir, "files")); err != nil || len(left) != 1 || left[0].Name() != "database" {
		t.Errorf("%v are left, %v", left, err)
	}
	for _, file := range []string{"batch.db", "batch.db-wal", "batch.db-shm", "lock"} {
		info, err := os.Stat(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v", file, info.Mode())
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info.Mode(), err)
	}
}

// TestReady: the probe fails once the database is closed.
func TestReady(t *testing.T) {
	d, err := openData(t.Context(), filepath.Join(t.TempDir(), "data"), (&boot.Log{}).New(boot.IO{Name: "batch", Stderr: io.Discard}))
	if err != nil {
		t.Fatal(err)
	}
	probe := boot.Operations(boot.NewRegistry(boot.IO{}), func() error { return d.ready(t.Context()) })
	status := func() int {
		w := httptest.NewRecorder()
		probe.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		return w.Code
	}
	if got := status(); got != http.StatusOK {
		t.Errorf("status %d", got)
	}
	d.close()
	if got := status(); got != http.StatusServiceUnavailable {
		t.Errorf("status %d after the end", got)
	}
}

// TestOtherDatabase: a database and contents of files that do not belong together are refused, and the contents stay as they are.
func TestOtherDatabase(t *testing.T) {
	log := (&boot.Log{}).New(boot.IO{Name: "batch", Stderr: io.Discard})
	store := func(t *testing.T, d *data) {
		t.Helper()
		w, err := d.blobs.Create(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(t *testing.T, d *data, err error, want string) {
		t.Helper()
		if err == nil {
			d.close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want a refusal that says %q", err, want)
		}
	}
	t.Run("directory", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "data")
		d, err := openData(t.Context(), dir, log)
		if err != nil {
			t.Fatal(err)
		}
		store(t, d)
		d.close()
		files := filepath.Join(dir, "files")
		if err := os.Rename(files, files+".away"); err != nil {
			t.Fatal(err)
		}
		d, err = openData(t.Context(), dir, log)
		refused(t, d, err, "are elsewhere")
		if err := errors.Join(os.RemoveAll(files), os.Rename(files+".away", files), os.Remove(filepath.Join(dir, "batch.db"))); err != nil {
			t.Fatal(err)
		}
		d, err = openData(t.Context(), dir, log)
		refused(t, d, err, "belong to another database")
		if left, err := os.ReadDir(files); err != nil || len(left) != 2 {
			t.Errorf("%v are left, %v", left, err)
		}
	})
	t.Run("bucket", func(t *testing.T) {
		server, objects := postgres.Start(t), s3.Start(t)
		s3.SetCredentials(t)
		address := func() string {
			file := filepath.Join(t.TempDir(), "database")
			if err := os.WriteFile(file, []byte(server.Schema()), 0o600); err != nil {
				t.Fatal(err)
			}
			return file
		}
		first, second := address(), address()
		bucket := objects.Bucket(t, "batches")
		var all []*data
		for range 2 { // two processes of one installation
			d, err := openShared(t.Context(), first, bucket)
			if err != nil {
				t.Fatal(err)
			}
			defer d.close()
			all = append(all, d)
		}
		store(t, all[0])
		d, err := openShared(t.Context(), second, bucket)
		refused(t, d, err, "belong to another database")
		d, err = openShared(t.Context(), first, objects.Bucket(t, "others"))
		refused(t, d, err, "are elsewhere")
		if d, err = openShared(t.Context(), second, bucket+"&prefix=second/"); err != nil {
			t.Fatal(err)
		}
		defer d.close()
		// It has found the bucket without an owner at the same time as the first.
		if err := all[0].bucket.Claim(t.Context(), "other"); err != nil {
			t.Fatal(err)
		}
		if err := all[0].claim(t.Context(), all[0].bucket); err == nil {
			t.Error("a sweep goes on in a bucket that another database has claimed since the start")
		}
	})
}
