package batch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

// submit uploads a file, and makes a batch of it.
func submit(ctx context.Context, r *run, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return boot.Configf("reading the input file: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", name)
	}
	if err != nil {
		return boot.Configf("reading the input file: %w", err)
	}
	endpoint := r.Submit.Endpoint
	if endpoint == "" {
		if endpoint, err = endpointOf(file); err == nil {
			_, err = file.Seek(0, io.SeekStart)
		}
		if err != nil {
			return boot.Configf("%s: %w", name, err)
		}
	}
	shown := newProgress(r.std.Stderr)
	id, err := r.server.upload(ctx, file, name, info.Size(), func(n int64) { shown.upload(n, info.Size()) })
	shown.clear()
	if err != nil {
		return err
	}
	body := map[string]any{"input_file_id": id, "endpoint": endpoint, "completion_window": r.Submit.Window}
	if len(r.Submit.Metadata) > 0 {
		pairs := map[string]string{}
		for _, pair := range r.Submit.Metadata {
			key, value, _ := strings.Cut(pair, "=")
			pairs[key] = value
		}
		body["metadata"] = pairs
	}
	var b object
	if err := r.server.call(ctx, http.MethodPost, "/v1/batches", body, &b); err != nil {
		var refused *refusal
		if errors.As(err, &refused) { // otherwise the batch may exist
			err = errors.Join(err, r.server.call(ctx, http.MethodDelete, "/v1/files/"+id, nil, &struct{}{}))
		}
		return err
	}
	if !r.Submit.Watch {
		return r.print(&b, "%s", b.ID)
	}
	if _, err := fmt.Fprintln(r.std.Stderr, b.ID); err != nil {
		return err
	}
	return watch(ctx, r, b.ID)
}

// watch shows a batch until it has ended.
func watch(ctx context.Context, r *run, id string) error {
	shown := newProgress(r.std.Stderr)
	var failing time.Time // since when the server does not answer
	for seen := false; ; {
		var b object
		err := r.server.call(ctx, http.MethodGet, batchPath(id), nil, &b)
		now := time.Now()
		switch {
		case ctx.Err() != nil:
			shown.clear()
			return fmt.Errorf("stopped watching batch %s, which goes on", id)
		case err == nil:
			seen, failing = true, time.Time{}
			shown.batch(&b, now)
		case !seen || !temporary(err):
			shown.clear()
			return err
		default:
			if failing.IsZero() {
				failing = now
			}
			if now.Sub(failing) >= r.Watch.GiveUp {
				shown.clear()
				return err
			}
			shown.trouble(err)
		}
		if b.ended() {
			shown.clear()
			if err := r.print(&b, "%s %s: %d of %d lines answered, %d failed", b.ID, b.Status, b.Counts.Completed, b.Counts.Total, b.Counts.Failed); err != nil {
				return err
			}
			return b.verdict()
		}
		if !batch.Sleep(ctx, r.Watch.Interval) {
			shown.clear()
			return fmt.Errorf("stopped watching batch %s, which goes on", id)
		}
	}
}
