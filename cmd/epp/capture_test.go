package main

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp/capture"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
)

// With --capture, the requests that a picker has picked for are in the file, with how they ended, when the picker has ended.
func TestCapture(t *testing.T) {
	dir := t.TempDir()
	file, key := filepath.Join(dir, "capture.jsonl"), filepath.Join(dir, "key")
	write(t, key, "0123456789abcdef0123456789abcdef\n")
	s := serve(t, "--secure-serving=false", "--capture="+file, "--capture-key-file="+key, "--seed=7")
	s.answered(t, http.Header{"X-Session-Id": {"Kassandra"}})
	s.pick(t, true) // its gateway leaves before the answer
	_, page := s.ask(t, "GET", "admin", "/debug/config", nil)
	used, err := config.Parse([]byte(page), plugin.Table)
	must(t, err)
	s.stop()
	<-s.ended
	text, err := os.ReadFile(file)
	must(t, err)
	c, err := capture.Read(strings.NewReader(string(text)), func(err error) error { return err })
	must(t, err)
	secret, err := os.ReadFile(key)
	must(t, err)
	want, err := capture.ParseKey(secret)
	must(t, err)
	h := c.Headers[len(c.Headers)-1]
	if h.Key != want.Name() || h.Seed != 7 || h.Digest != used.Digest() || h.Config != page || len(h.Endpoints) != 2 {
		t.Errorf("the header is %+v", h)
	}
	if len(c.Requests) != 2 || len(c.Loads) < 2 {
		t.Fatalf("captured:\n%s", text)
	}
	if r := c.Requests[0]; r.Status != 200 || r.Session == "" || r.Picks[0].Endpoints[0] != "default/d" || r.Phases.Total <= 0 {
		t.Errorf("the first request is %+v", r)
	}
	if r := c.Requests[1]; r.Status != 0 || r.InputTokens != 5000 || len(r.Picks) == 0 {
		t.Errorf("the second request has status %d, %d tokens and the picks %+v", r.Status, r.InputTokens, r.Picks)
	}
	if strings.Contains(string(text), "Kassandra") {
		t.Errorf("a header's value is captured:\n%s", text)
	}
}

// Pickers with one key hash a prompt alike, others do not.
func TestCapturesOfSeveralPickers(t *testing.T) {
	dir := t.TempDir()
	blocks := map[string][]int64{}
	for _, picker := range []struct{ name, key string }{{"one", "0123456789abcdef"}, {"two", "0123456789abcdef"}, {"stranger", "fedcba9876543210"}, {"alone", ""}} {
		file, flags := filepath.Join(dir, picker.name), []string{"--secure-serving=false"}
		if picker.key != "" {
			write(t, file+".key", picker.key)
			flags = append(flags, "--capture-key-file="+file+".key")
		}
		s := serve(t, append(flags, "--capture="+file)...)
		s.pick(t, true)
		s.stop()
		<-s.ended
		text, err := os.ReadFile(file)
		must(t, err)
		c, err := capture.Read(strings.NewReader(string(text)), func(err error) error { return err })
		must(t, err)
		blocks[picker.name] = c.Requests[0].Blocks
	}
	if len(blocks["one"]) == 0 || !slices.Equal(blocks["one"], blocks["two"]) {
		t.Errorf("with one key, a prompt has the blocks %v and %v", blocks["one"], blocks["two"])
	}
	for _, other := range []string{"stranger", "alone"} {
		if blocks[other][0] == blocks["one"][0] {
			t.Errorf("%s has the hashes of another key", other)
		}
	}
}
