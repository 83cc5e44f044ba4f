package batch

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
)

// TestWebhook: the event of a batch reaches the operator's server although the batch server is killed between tries, and OpenAI's stock client
// accepts it.
func TestWebhook(t *testing.T) {
	python := stockPython(t)
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	type request struct {
		Header map[string]string `json:"header"`
		Body   string            `json:"body"`
	}
	got := make(chan request, 10)
	var refuse atomic.Bool
	refuse.Store(true)
	hooks := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // a killed server breaks off
		if refuse.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		header := map[string]string{}
		for name := range r.Header {
			header[strings.ToLower(name)] = r.Header.Get(name)
		}
		got <- request{header, string(body)}
	}))
	t.Cleanup(hooks.Close)
	url, _ := instant(t, func(context.Context) {})
	what := program(t.TempDir(), url, "--webhook-url="+hooks.URL, "--webhook-secret-file="+file)
	running := launchProgram(t, what)
	base := "http://" + running.Addr("http")
	j := create(t, base, upload(t, base, 3))
	await(t, base, j.ID, ended)
	receive := func() request {
		t.Helper()
		select {
		case r := <-got:
			return r
		case <-time.After(harness.Patience):
			t.Fatal("no event comes")
			return request{}
		}
	}
	first := receive()
	if err := running.Kill(); err != nil {
		t.Fatal(err)
	}
	<-running.Done()
	refuse.Store(false)
	launchProgram(t, what)
	second := receive()
	if first.Header["webhook-id"] == "" || first.Header["webhook-id"] != second.Header["webhook-id"] {
		t.Errorf("the events have the ids %q and %q", first.Header["webhook-id"], second.Header["webhook-id"])
	}
	line, err := json.Marshal(second)
	if err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(harness.Within(t), python, filepath.Join("testdata", "openai_webhook.py"))
	run.Env = append(os.Environ(), "OPENAI_API_KEY=none", "SECRET="+secret, "PYTHONDONTWRITEBYTECODE=1")
	run.Stdin = strings.NewReader(string(line) + "\n")
	out, err := run.CombinedOutput()
	if err != nil || string(out) != "batch.completed "+j.ID+"\n" {
		t.Errorf("OpenAI's client says %s, %v", out, err)
	}
}
