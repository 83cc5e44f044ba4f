// Package batch tests the batch server from outside: with OpenAI's stock client, and with a process that is killed again and again.
package batch

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/stack"
)

func TestMain(m *testing.M) { os.Exit(harness.Run(m)) }

var (
	lineCount = flag.Int("batch.lines", 20_000, "lines of the batches of TestKilled and TestManyLines")
	kills     = flag.Int("batch.kills", 6, "how often TestKilled kills the batch server")
	fileBytes = flag.Int("batch.bytes", 32<<20, "bytes of the input file of TestLargeFile")
	partsFor  = flag.Duration("batch.parts-for", 10*time.Second, "how long TestPartsKilled kills parts")
	partsGap  = flag.Duration("batch.parts-every", 2*time.Second, "how often TestPartsKilled kills a part")
)

// start starts a batch server on a data directory.
func start(t *testing.T, data, upstream string, flags ...string) harness.Program {
	t.Helper()
	return harness.Start(t, program(data, upstream, flags...))
}

func program(data, upstream string, flags ...string) stack.Program {
	return stack.Program{Name: "batch", Path: filepath.Join(harness.BinDir, "batch"),
		Args: append([]string{"--data=" + data, "--upstream=" + upstream, "--port=0", "--metrics-port=0"}, flags...)}
}

// stockPython returns the Python that has OpenAI's client.
func stockPython(t *testing.T) string {
	t.Helper()
	python, err := filepath.Abs(filepath.Join(harness.Root, ".tools", "clients", "bin", "python"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(python); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%v (make .tools/clients fetches it)", err)
		}
		t.Skipf("%v (make .tools/clients fetches it)", err)
	}
	return python
}

// runScript runs a script of testdata against a server.
func runScript(t *testing.T, python, script, address string) {
	t.Helper()
	run := exec.CommandContext(harness.Within(t), python, filepath.Join("testdata", script))
	run.Env = append(os.Environ(), "OPENAI_BASE_URL=http://"+address+"/v1", "OPENAI_API_KEY=team-a", "MODEL=tiny", "NO_PROXY=*", "PYTHONDONTWRITEBYTECODE=1")
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestOpenAIClientQuota has the stock client exceed the quotas of the server: it does not try again.
func TestOpenAIClientQuota(t *testing.T) {
	python := stockPython(t)
	// The upstream does not answer, so that batches do not end.
	url, _ := instant(t, func(ctx context.Context) { <-ctx.Done() })
	server := start(t, t.TempDir(), url, "--drain-timeout=0s", "--retention=48h", "--tenant-max-bytes=2KiB", "--tenant-max-batches=2", "--tenant-max-lines=8")
	runScript(t, python, "openai_quota.py", server.Addr("http"))
}

// TestCommand has tandem batch do the whole way, with a simulated engine behind the server.
func TestCommand(t *testing.T) {
	engine := harness.StartSim(t, "engine")
	server := start(t, t.TempDir(), "http://"+engine.Addr)
	dir := t.TempDir()
	line := `{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":{"model":"tiny","max_tokens":2,"messages":[{"role":"user","content":"Hello"}]}}` + "\n"
	if err := os.WriteFile(filepath.Join(dir, "requests.jsonl"), []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	tandem := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(harness.Within(t), filepath.Join(harness.BinDir, "tandem"), append([]string{"batch", "--url=http://" + server.Addr("http")}, args...)...)
		cmd.Dir = dir
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s%s", args, err, out, stderr.String())
		}
		return string(out)
	}
	id := strings.TrimSpace(tandem("submit", "requests.jsonl"))
	if out := tandem("watch", id, "--interval=50ms"); out != id+" completed: 1 of 1 lines answered, 0 failed\n" {
		t.Errorf("watch printed %q", out)
	}
	tandem("fetch", id)
	if text, err := os.ReadFile(filepath.Join(dir, id+"_output.jsonl")); err != nil || !strings.Contains(string(text), `"custom_id":"1"`) {
		t.Errorf("the output file is %q, %v", text, err)
	}
	if out := tandem("list"); !strings.Contains(out, id) {
		t.Errorf("list printed %q", out)
	}
}

// TestOpenAIClient has the stock client do what testdata/openai_batch.py says, with a simulated engine behind the server.
func TestOpenAIClient(t *testing.T) {
	python := stockPython(t)
	engine := harness.StartSim(t, "engine")
	server := start(t, t.TempDir(), "http://"+engine.Addr)
	runScript(t, python, "openai_batch.py", server.Addr("http"))
	runPage(t, python, server.Addr("http"))
	if unanswered := harness.SumOf(t, server.Addr("metrics"), "tandem_batch_inflight"); unanswered != 0 {
		t.Errorf("%v requests are in flight after the end of all batches", unanswered)
	}
}

// runPage runs the Python of docs/batch.md.
func runPage(t *testing.T, python, address string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(harness.Root, "docs", "batch.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(page), "```python\n")
	code, _, found := strings.Cut(code, "```")
	if !found {
		t.Fatal("docs/batch.md has no Python")
	}
	dir := t.TempDir()
	line := `{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":{"model":"tiny","max_tokens":2,"messages":[{"role":"user","content":"Hello"}]}}` + "\n"
	if err := os.WriteFile(filepath.Join(dir, "requests.jsonl"), []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	run := exec.CommandContext(harness.Within(t), python, "-c", "import openai, time\n"+strings.ReplaceAll(code, "time.sleep(10)", "time.sleep(0.05)"))
	run.Dir, run.Env = dir, append(os.Environ(), "OPENAI_BASE_URL=http://"+address+"/v1", "OPENAI_API_KEY=reader", "NO_PROXY=*", "PYTHONDONTWRITEBYTECODE=1")
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if answers, err := os.ReadFile(filepath.Join(dir, "answers.jsonl")); err != nil || !strings.Contains(string(answers), `"custom_id":"1"`) {
		t.Errorf("the answers are %s, %v", answers, err)
	}
}

// instant starts an upstream that answers once wait has returned, and counts. The id of an answer ends with that of the request, as vLLM's does.
func instant(t *testing.T, wait func(context.Context)) (url string, requests *atomic.Int64) {
	t.Helper()
	requests = new(atomic.Int64)
	answer := []byte(`","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"` + strings.Repeat("word ", 40) + `"},"finish_reason":"stop"}]}`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a killed server breaks off
		requests.Add(1)
		wait(r.Context())
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(slices.Concat([]byte(`{"id":"chatcmpl-`), []byte(r.Header.Get("X-Request-Id")), answer))
	}))
	t.Cleanup(server.Close)
	return server.URL, requests
}

// upTo returns a wait of a random time.
func upTo(most time.Duration) func(context.Context) {
	return func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(most)):
		}
	}
}

// upload uploads n lines, each with about 700 bytes, without holding them in memory.
func upload(t *testing.T, base string, n int) (file string) {
	t.Helper()
	file, err := tryUpload(t.Context(), base, n, 110)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// tryUpload uploads n lines of so many words.
func tryUpload(ctx context.Context, base string, n, words int) (file string, err error) {
	r, w := io.Pipe()
	defer r.Close()
	form := multipart.NewWriter(w)
	go func() {
		err := form.WriteField("purpose", "batch")
		part, partErr := form.CreateFormFile("file", "requests.jsonl")
		text := strings.Repeat("word ", words)
		for i := 0; err == nil && partErr == nil && i < n; i++ {
			_, err = fmt.Fprintf(part, `{"custom_id":"line-%d","method":"POST","url":"/v1/chat/completions","body":{"model":"m","max_tokens":2,"messages":[{"role":"user","content":"%s %d"}]}}`+"\n", i, text, i)
		}
		if err == nil {
			err = form.Close()
		}
		w.CloseWithError(err)
	}()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/files", r)
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", form.FormDataContentType())
	var object struct{ ID string }
	err = tryAsk(request, &object)
	return object.ID, err
}

// ask sends a request, and reads the object in the answer.
func ask(t *testing.T, request *http.Request, into any) {
	t.Helper()
	if err := tryAsk(request, into); err != nil {
		t.Fatal(err)
	}
}

func tryAsk(request *http.Request, into any) error {
	answer, err := harness.Client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode == http.StatusOK {
		err = json.Unmarshal(text, into)
	}
	if err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %d %s, %w", request.Method, request.URL.Path, answer.StatusCode, text, err)
	}
	return nil
}

// job is a batch as its client sees it.
type job struct {
	ID           string
	Status       string
	OutputFileID string `json:"output_file_id"`
	ErrorFileID  string `json:"error_file_id"`
	Counts       struct {
		Total, Completed, Failed int
	} `json:"request_counts"`
}

func create(t *testing.T, base, file string) job {
	t.Helper()
	j, err := tryCreate(t.Context(), base, file)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func tryCreate(ctx context.Context, base, file string) (j job, err error) {
	body := fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/chat/completions","completion_window":"24h"}`, file)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/batches", strings.NewReader(body))
	if err != nil {
		return j, err
	}
	return j, tryAsk(request, &j)
}

func get(t *testing.T, base, id string) (j job) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/v1/batches/"+id, nil)
	if err != nil {
		t.Fatal(err)
	}
	ask(t, request, &j)
	return j
}

// await waits until a batch is as it should be. The larger a batch, the longer it may take.
func await(t *testing.T, base, id string, ok func(job) bool) job {
	t.Helper()
	end := time.After(harness.Patience + time.Duration(*lineCount)*2*time.Millisecond)
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		j := get(t, base, id)
		if ok(j) {
			return j
		}
		select {
		case <-end:
			t.Fatalf("the batch stays %+v", j)
		case <-poll.C:
		}
	}
}

func ended(j job) bool {
	return j.Status == "completed" || j.Status == "failed" || j.Status == "expired" || j.Status == "cancelled"
}

// mustHaveEach fails unless the output file has each of n lines once, in order, with an answer to its request. It holds one of them in memory.
func mustHaveEach(t *testing.T, base string, j job, n int) {
	t.Helper()
	if j.Status != "completed" || j.Counts.Completed != n || j.Counts.Total != n || j.ErrorFileID != "" {
		t.Fatalf("the batch is %+v", j)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/v1/files/"+j.OutputFileID+"/content", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := harness.Client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	results := json.NewDecoder(answer.Body)
	i := 0
	for ; results.More(); i++ {
		var result struct {
			CustomID string `json:"custom_id"`
			Response struct {
				Status    int    `json:"status_code"`
				RequestID string `json:"request_id"`
				Body      struct{ ID string }
			}
		}
		if err := results.Decode(&result); err != nil {
			t.Fatalf("line %d: %v", i, err)
		}
		if want := fmt.Sprintf("line-%d", i); result.CustomID != want {
			t.Fatalf("line %d is %s, want %s", i, result.CustomID, want)
		}
		if r := result.Response; r.Status != http.StatusOK || !strings.HasSuffix(r.RequestID, fmt.Sprintf("_%d", i)) || !strings.HasSuffix(r.Body.ID, r.RequestID) {
			t.Fatalf("line %d has the answer %+v", i, r)
		}
	}
	if i != n {
		t.Errorf("%d lines, want %d", i, n)
	}
}

// TestKilled kills the batch server (kill -9) at random moments of its work. Every line has one result.
func TestKilled(t *testing.T) {
	url, requests := instant(t, upTo(20*time.Millisecond))
	data, n := t.TempDir(), *lineCount
	running := launch(t, data, url)
	base := "http://" + running.Addr("http")
	file := upload(t, base, n)
	id := create(t, base, file).ID
	for kill := range *kills {
		least := (kill + 1) * n / (*kills + 2) // spread over the whole batch
		await(t, base, id, func(j job) bool { return ended(j) || j.Counts.Completed >= least })
		if err := running.Kill(); err != nil {
			t.Fatal(err)
		}
		<-running.Done()
		running = launch(t, data, url)
		base = "http://" + running.Addr("http")
	}
	mustHaveEach(t, base, await(t, base, id, ended), n)
	t.Logf("%d lines, %d kills, %d requests", n, *kills, requests.Load())
	running.MustStop(t)
	left, err := os.ReadDir(filepath.Join(data, "files"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if strings.HasSuffix(f.Name(), ".tmp") {
			t.Errorf("%s is left", f.Name())
		}
	}
}

// launch starts a batch server that may be killed: harness.Start fails tests whose programs are.
func launch(t *testing.T, data, upstream string) harness.Program {
	t.Helper()
	return launchProgram(t, program(data, upstream))
}

func launchProgram(t *testing.T, what stack.Program) harness.Program {
	t.Helper()
	what.Grace, what.ReadyTimeout = harness.Patience, harness.Patience
	p, err := stack.Start(context.Background(), what)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Stop() // it may have been killed
		if t.Failed() {
			t.Logf("batch said:\n%s", strings.Join(p.Output(), "\n"))
		}
	})
	return harness.Program{Process: p}
}

// TestManyLines bounds what a large batch takes of memory, and shows its cost. -batch.lines has as many as you like.
func TestManyLines(t *testing.T) {
	url, _ := instant(t, func(context.Context) {})
	server := start(t, t.TempDir(), url)
	base, n := "http://"+server.Addr("http"), *lineCount
	file := upload(t, base, n)
	begun, before := time.Now(), harness.CPUOf(t, server.PID())
	id := create(t, base, file).ID
	await(t, base, id, func(j job) bool { return ended(j) || j.Counts.Completed >= n/10 })
	early := harness.PeakOf(t, server.PID())
	j := await(t, base, id, ended)
	took, cpu := time.Since(begun), harness.CPUOf(t, server.PID())-before
	peak := harness.PeakOf(t, server.PID())
	t.Logf("%d lines in %v: %.0f lines/s for each core of the batch server; peak memory %d MiB, %d MiB after a tenth", n, took.Round(time.Millisecond), float64(n)/cpu.Seconds(), peak, early)
	mustHaveEach(t, base, j, n)
	if most := 200; peak > most {
		t.Errorf("%d MiB of memory, want at most %d", peak, most)
	}
}
