package sidecar

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
)

// warmup makes decode meet prefill pods before traffic does: the first hand-off of a pair pays for the engines' handshake
// (measured on loopback 60 to 200 ms, more over a network). It runs one tiny hand-off with every pod it finds, once.
// Nothing is routed by what it finds.
type warmup struct {
	s    *Server
	find func(context.Context) ([]pd.Target, error)
	met  map[pd.Target]bool
}

const (
	// warmupEvery is how often new prefill pods are looked for.
	warmupEvery = 30 * time.Second
	// warmupTimeout bounds one hand-off of the warm-up.
	warmupTimeout = 15 * time.Second
)

// parseDiscovery reads --prefill-discovery: dns://host:port (every address of the name) or file:path (host:port lines, #
// begins a comment).
func parseDiscovery(source string) (func(context.Context) ([]pd.Target, error), error) {
	if path, ok := strings.CutPrefix(source, "file:"); ok && path != "" {
		return func(context.Context) ([]pd.Target, error) { return readTargets(path) }, nil
	}
	name, ok := strings.CutPrefix(source, "dns://")
	targets, err := pd.ParseTargets([]string{name})
	if !ok || err != nil || len(targets) != 1 {
		return nil, fmt.Errorf("%q is neither dns://HOST:PORT nor file:PATH", source)
	}
	return func(ctx context.Context) ([]pd.Target, error) { return resolve(ctx, targets[0]) }, nil
}

func resolve(ctx context.Context, name pd.Target) ([]pd.Target, error) {
	addrs, err := net.DefaultResolver.LookupHost(ctx, name.Host)
	if err != nil {
		return nil, err
	}
	targets := make([]pd.Target, len(addrs))
	for i, a := range addrs {
		targets[i] = pd.Target{Host: a, Port: name.Port}
	}
	return targets, nil
}

func readTargets(path string) ([]pd.Target, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var targets []pd.Target
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		t, err := pd.ParseTargets([]string{line})
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		targets = append(targets, t...)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return targets, nil
}

func (w *warmup) run(ctx context.Context) {
	tick := time.NewTicker(warmupEvery)
	defer tick.Stop()
	for {
		w.round(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// round meets the pods not met yet, and forgets those that are gone: another engine may come at their address.
func (w *warmup) round(ctx context.Context) {
	targets, err := w.find(ctx)
	if err != nil {
		w.s.log.Warn("looking for prefill pods to warm up", "error", err)
		return
	}
	met := make(map[pd.Target]bool, len(targets))
	for _, t := range targets {
		if ctx.Err() != nil {
			return
		}
		met[t] = w.met[t]
		if met[t] || w.s.allow.check(t) != nil {
			continue
		}
		if err := w.meet(ctx, t); err != nil {
			w.s.log.Warn("warming up a prefill pod", "target", t.String(), "error", err)
			continue
		}
		met[t] = true
		w.s.log.Info("prefill pod is warm", "target", t.String())
	}
	w.met = met
}

// meet runs one hand-off of a few tokens.
func (w *warmup) meet(ctx context.Context, t pd.Target) error {
	ctx, cancel := context.WithTimeout(ctx, warmupTimeout)
	defer cancel()
	model, err := w.s.model(ctx)
	if err != nil {
		return fmt.Errorf("asking decode for its model: %w", err)
	}
	req, err := warmupRequest(model)
	if err != nil {
		return err
	}
	header := http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"tandem-warmup-" + requestID(nil)}}
	l, err := w.s.dialect.Prefill(req)
	if err != nil {
		return fmt.Errorf("editing the prefill leg: %w", err)
	}
	_, offer, err := w.s.sendPrefill(ctx, t, pd.APICompletions.Path(), header.Clone(), l)
	if err != nil {
		return err
	}
	if l, err = w.s.dialect.Decode(req, offer); err != nil {
		return fmt.Errorf("editing the decode leg: %w", err)
	}
	leg, err := newHeldLeg(ctx, w.s.engine+pd.APICompletions.Path(), header, l)
	if err != nil {
		return err
	}
	resp, err := w.s.local.RoundTrip(leg)
	if err != nil {
		w.s.forget(held{header.Get("X-Request-Id"), offer, header.Clone()})
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		if keepsHold(resp.StatusCode) {
			w.s.forget(held{header.Get("X-Request-Id"), offer, header.Clone()})
		}
		return fmt.Errorf("decode answered %s", resp.Status)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

func warmupRequest(model string) (*dialect.Request, error) {
	text, err := json.Marshal(map[string]any{"model": model, "prompt": "Tandem warms this pair up.", "max_tokens": 1, "temperature": 0})
	if err != nil {
		return nil, err
	}
	var scan body.Scanner
	scan.Reset(dialect.RequestTable(), body.Limits{}, nil)
	if _, err := scan.Write(text); err != nil {
		return nil, err
	}
	b := &body.Body{}
	b.Append(text)
	return dialect.NewRequest(pd.APICompletions, b, &scan), scan.Close()
}

var errNoModel = errors.New("it serves none")

// model is the name of the first model of the decode engine.
func (s *Server) model(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.engine+"/v1/models", nil)
	if err != nil {
		return "", err
	}
	resp, err := s.local.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxPrefillAnswer)).Decode(&list); err != nil {
		return "", err
	}
	if len(list.Data) == 0 || list.Data[0].ID == "" {
		return "", errNoModel
	}
	return list.Data[0].ID, nil
}
