package main

import (
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/capture"
	"github.com/tandem-serving/tandem/epp/extproc"
	"github.com/tandem-serving/tandem/epp/read"
)

// leastCapture is the least size of one file of a capture: the beginning of a file names all endpoints and their loads.
const leastCapture = 1 << 20

func (t *tell) validateCapture(p *boot.Problems) {
	p.Require(t.CaptureMax >= leastCapture, "capture-max-bytes", "must be 1 MiB or more")
	p.Require(t.CaptureFiles >= 1 && t.CaptureFiles <= 1000, "capture-files", "must be from 1 to 1000")
	_, err := t.key()
	p.Require(err == nil, "capture-key-file", "%w", err)
	p.Require(t.CaptureKey == "" || t.Capture != "", "capture-key-file", "is for --capture")
}

// key returns the key of the capture's hashes.
func (t *tell) key() (capture.Key, error) {
	if t.CaptureKey == "" {
		return capture.NewKey(), nil
	}
	secret, err := os.ReadFile(t.CaptureKey)
	if err != nil {
		return capture.Key{}, err
	}
	key, err := capture.ParseKey(secret)
	if err != nil {
		return capture.Key{}, err
	}
	return *key, nil
}

// newCapture begins the capture, and returns nil if there is to be none. secret keys the hashes of prompts, so that those of all
// pickers with the key are alike; nil without a key.
func (t *tell) newCapture(log *slog.Logger, registry *prometheus.Registry) (r *capture.Recorder, secret *read.Secret, err error) {
	if t.Capture == "" {
		return nil, nil, nil
	}
	key, err := t.key()
	if err != nil {
		return nil, nil, boot.Configf("capture-key-file: %w", err)
	}
	if t.CaptureKey != "" {
		prompts := read.Secret(key.ForPrompts())
		secret = &prompts
	}
	r, err = capture.New(capture.Options{Path: t.Capture, MaxBytes: int64(t.CaptureMax), Files: t.CaptureFiles, Key: key, Log: log, Metrics: registry})
	if err != nil {
		return nil, nil, boot.Configf("capture: %w", err)
	}
	return r, secret, nil
}

// asked returns what the ext-proc server asks, and who is told the outcomes.
func (p *picker) asked() (extproc.Scheduler, []epp.Observer) {
	observers := []epp.Observer{p.sched, p.requests}
	if p.capture == nil {
		return p.sched, observers
	}
	return p.capture.Schedule(p.sched), append(observers, p.capture)
}
