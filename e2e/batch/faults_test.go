package batch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/stack"
)

// faultLines is how many lines a batch has during which something fails.
const faultLines = 3000

// faults are the rows of the table in docs/batch.md that tests of this package hold.
var faults = map[string]func(t *testing.T){
	"picker":   pickerFault,
	"locked":   lockedFault,
	"disk":     diskFault,
	"database": databaseFault,
	"store":    storeFault,
	"lines":    linesFault,
}

// TestFaults has something fail while a batch runs. Every line has one result.
func TestFaults(t *testing.T) {
	for name, run := range faults {
		t.Run(name, func(t *testing.T) { t.Parallel(); run(t) })
	}
}

// TestFaultTable: the table of docs/batch.md has the rows of TestFaults, and the tests that it names exist.
func TestFaultTable(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(harness.Root, "docs", "batch.md"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, m := range regexp.MustCompile("(?m)`([a-z0-9/]+)` (Test[A-Za-z]+)(?:/([a-z-]+))? *\\|$").FindAllStringSubmatch(string(page), -1) {
		folder, test, row := m[1], m[2], m[3]
		if folder == "e2e/batch" && test == "TestFaults" {
			rows = append(rows, row)
			continue
		}
		files, err := filepath.Glob(filepath.Join(harness.Root, folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(text), "\nfunc "+test+"(t *testing.T)")
		}) {
			t.Errorf("%s has no %s", folder, test)
		}
	}
	slices.Sort(rows)
	var want []string
	for name := range faults {
		want = append(want, name)
	}
	slices.Sort(want)
	if !slices.Equal(rows, want) {
		t.Errorf("docs/batch.md has the rows %q of TestFaults, want %q", rows, want)
	}
}

// service is a program that is killed, and started again at its addresses.
type service struct {
	what stack.Program
	harness.Program
}

func serve(t *testing.T, what stack.Program) *service {
	t.Helper()
	s := &service{what, launchProgram(t, what)}
	s.what.Args = slices.Concat(what.Args, what.Again(s.Addresses()))
	return s
}

func (s *service) kill(t *testing.T) {
	t.Helper()
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
}

func (s *service) restart(t *testing.T) {
	t.Helper()
	s.Program = launchProgram(t, s.what)
}

// again has a batch server listen at its addresses again.
func again(p stack.Program) stack.Program {
	p.Again = func(at map[string]string) []string {
		_, api, _ := strings.Cut(at["http"], ":")
		_, metrics, _ := strings.Cut(at["metrics"], ":")
		return []string{"--port=" + api, "--metrics-port=" + metrics}
	}
	return p
}

// during runs a batch, and has fail called when a third of its lines have a result. The batch ends well.
func during(t *testing.T, base string, fail func()) {
	t.Helper()
	id := create(t, base, upload(t, base, faultLines)).ID
	j := awaitPatiently(t, base, id, func(j job) bool { return ended(j) || j.Counts.Completed >= faultLines/3 })
	if ended(j) {
		t.Fatalf("the batch has ended before anything failed: %+v", j)
	}
	fail()
	mustHaveEach(t, base, awaitPatiently(t, base, id, ended), faultLines)
}

// awaitSilence waits until the upstream has had no request for a while: the server has stopped sending, before it has sent all lines.
func awaitSilence(t *testing.T, requests *atomic.Int64) {
	t.Helper()
	const silence = 2 * time.Second
	end := time.After(harness.Patience)
	for last := requests.Load(); ; {
		select {
		case <-time.After(silence):
		case <-end:
			t.Fatal("the server goes on sending requests whose results it cannot store")
		}
		now := requests.Load()
		if now >= faultLines {
			t.Fatalf("the server has sent %d requests, whose results it cannot store", now)
		}
		if now == last {
			return
		}
		last = now
	}
}

// mustRefuse uploads n lines, and fails unless the answer has a status.
func mustRefuse(t *testing.T, base string, n int, status string) {
	t.Helper()
	if _, err := tryUpload(t.Context(), base, n, 110); err == nil || !strings.Contains(err.Error(), status) {
		t.Errorf("an upload while its storage fails: %v, want%s", err, status)
	}
}

// gateway is a picker with a gateway in front of it, and two simulated engines.
type gateway struct {
	picker, front *service
	engines       []*service
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	g := &gateway{}
	dir := t.TempDir()
	var endpoints strings.Builder
	endpoints.WriteString("endpoints:\n")
	for i := range 2 {
		e := serve(t, stack.Sim(harness.BinDir, fmt.Sprintf("engine-%d", i), "--served-model-name=m"))
		_, port, _ := strings.Cut(e.Addr("http"), ":")
		fmt.Fprintf(&endpoints, "- name: engine-%d\n  address: 127.0.0.1\n  port: %q\n  labels:\n    llm-d.ai/role: decode\n", i, port)
		g.engines = append(g.engines, e)
	}
	config, pool := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "endpoints.yaml")
	harness.Replace(t, config, fmt.Sprintf(harness.PdConfig, 1_000_000, ""))
	harness.Replace(t, pool, endpoints.String())
	g.picker = serve(t, stack.EPP(harness.BinDir, "--secure-serving=false", "--config-file="+config, "--endpoints-file="+pool))
	g.front = serve(t, stack.Gateway(harness.BinDir, "--listen=127.0.0.1:0", "--epp="+g.picker.Addr("extproc"), "--mode=single", "--epp-plaintext"))
	return g
}

func (g *gateway) url() string { return "http://" + g.front.Addr("http") }

func pickerFault(t *testing.T) {
	g := newGateway(t)
	s := serve(t, again(program(t.TempDir(), g.url())))
	during(t, "http://"+s.Addr("http"), func() {
		for _, part := range []*service{g.picker, g.front, g.engines[0]} {
			part.kill(t)
			part.restart(t)
		}
	})
}

// writeLock is the byte of the file …-shm that a writer of a SQLite database in WAL mode locks (https://www.sqlite.org/walformat.html).
const writeLock = 120

// lockedFault does to the database what another program with a write transaction does, such as a backup.
func lockedFault(t *testing.T) {
	url, requests := instant(t, upTo(100*time.Millisecond))
	dir := t.TempDir()
	s := serve(t, again(program(dir, url)))
	during(t, "http://"+s.Addr("http"), func() {
		file, err := os.OpenFile(filepath.Join(dir, "batch.db-shm"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close() // ends the lock
		lock := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart, Start: writeLock, Len: 1}
		for err = syscall.EAGAIN; errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EINTR); {
			err = syscall.FcntlFlock(file.Fd(), syscall.F_SETLK, &lock)
		}
		if err != nil {
			t.Fatal(err)
		}
		awaitSilence(t, requests)
	})
}

// diskFault runs the server with a small disk of its own: a tmpfs that only it sees, which needs root, or the right to make namespaces.
func diskFault(t *testing.T) {
	url, requests := instant(t, upTo(100*time.Millisecond))
	dir := t.TempDir()
	p := again(program(dir, url))
	flags := "-m"
	if os.Getuid() != 0 {
		flags = "-Urm"
	}
	const mounted = `mount -t tmpfs -o size=64m tmpfs "$0" && exec "$@"`
	if out, err := exec.CommandContext(harness.Within(t), "unshare", flags, "sh", "-c", mounted, dir, "true").CombinedOutput(); err != nil {
		text := fmt.Sprintf("a tmpfs cannot be mounted (%v): %s", err, out)
		if os.Getenv("CI") == "true" {
			t.Fatal(text)
		}
		t.Skip(text)
	}
	p.Args = slices.Concat([]string{flags, "sh", "-c", mounted, dir, p.Path}, p.Args)
	p.Path = "unshare"
	s := serve(t, p)
	base := "http://" + s.Addr("http")
	during(t, base, func() {
		fill := filepath.Join(fmt.Sprintf("/proc/%d/root", s.PID()), dir, "fill")
		file, err := os.Create(fill)
		if err != nil {
			t.Fatal(err)
		}
		for block := make([]byte, 64<<10); err == nil; {
			_, err = file.Write(block)
		}
		if !errors.Is(err, syscall.ENOSPC) || file.Close() != nil {
			t.Fatal(err)
		}
		awaitSilence(t, requests)
		mustRefuse(t, base, 100_000, " 507 ")
		if err := os.Remove(fill); err != nil {
			t.Fatal(err)
		}
	})
}

func databaseFault(t *testing.T) {
	url, requests := instant(t, upTo(100*time.Millisecond))
	installation := newShared(t)
	s := serve(t, again(installation.program(url)))
	base := "http://" + s.Addr("http")
	during(t, base, func() {
		installation.database.Kill()
		awaitSilence(t, requests)
		mustRefuse(t, base, 1, " 500 ")
		ready, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Addr("metrics")+"/readyz", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := tryAsk(ready, nil); err == nil || !strings.Contains(err.Error(), " 503 ") {
			t.Errorf("/readyz without a database: %v", err)
		}
		installation.database.Restart()
	})
}

func storeFault(t *testing.T) {
	url, requests := instant(t, upTo(100*time.Millisecond))
	installation := newShared(t)
	s := serve(t, again(installation.program(url)))
	base := "http://" + s.Addr("http")
	during(t, base, func() {
		installation.objects.Kill()
		awaitSilence(t, requests)
		mustRefuse(t, base, 1, " 500 ")
		installation.objects.Restart(t)
	})
}

// linesFault sends files whose lines are not requests. Their batches fail with the numbers of the lines, nothing is sent upstream, and the
// next batch runs.
func linesFault(t *testing.T) {
	url, requests := instant(t, func(context.Context) {})
	s := start(t, t.TempDir(), url)
	base := "http://" + s.Addr("http")
	good := `{"custom_id":"good","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[]}}`
	with := func(old, new string) string {
		return strings.Replace(strings.Replace(good, "good", "bad", 1), old, new, 1)
	}
	for name, bad := range map[string]string{
		"no JSON":                      `{"custom_id":`,
		"a list":                       `[]`,
		"a NUL":                        with("bad", "\x00"),
		"bytes that are not UTF-8":     with("bad", "\xff\xfe"),
		"deep nesting":                 with("[]", strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000)),
		"no custom_id":                 with(`"custom_id":"bad",`, ""),
		"the custom_id of line 1":      good,
		"another method":               with("POST", "DELETE"),
		"another endpoint":             with("/v1/chat/completions", "/v1/embeddings"),
		"another model":                with(`"m"`, `"other"`),
		"a stream":                     with(`"model"`, `"stream":true,"model"`),
		"more bytes than a line has":   with("[]", `["`+strings.Repeat("x", 17<<20)+`"]`),
		"a body that is not an object": with(`{"model":"m","messages":[]}`, `"text"`),
	} {
		t.Run(name, func(t *testing.T) {
			id := create(t, base, uploadText(t, base, good+"\n\n"+bad+"\n")).ID
			await(t, base, id, ended)
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/v1/batches/"+id, nil)
			if err != nil {
				t.Fatal(err)
			}
			var failed struct {
				Status string
				Errors struct {
					Data []struct {
						Line          int
						Code, Message string
					}
				}
			}
			ask(t, request, &failed)
			if all := failed.Errors.Data; failed.Status != "failed" || len(all) != 1 || all[0].Line != 3 || all[0].Code == "" || all[0].Message == "" {
				t.Errorf("the batch is %+v", failed)
			}
		})
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	mustHaveEach(t, base, await(t, base, create(t, base, upload(t, base, 3)).ID, ended), 3)
}

func uploadText(t *testing.T, base, text string) string {
	t.Helper()
	var body strings.Builder
	form := multipart.NewWriter(&body)
	err := form.WriteField("purpose", "batch")
	part, partErr := form.CreateFormFile("file", "requests.jsonl")
	if partErr == nil {
		_, partErr = io.WriteString(part, text)
	}
	if err := errors.Join(err, partErr, form.Close()); err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/v1/files", strings.NewReader(body.String()))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", form.FormDataContentType())
	var object struct{ ID string }
	ask(t, request, &object)
	return object.ID
}

// TestLargeFile bounds what a large file with long lines takes of memory.
func TestLargeFile(t *testing.T) {
	const words = 20_000 // 100 KB a line
	url, _ := instant(t, func(context.Context) {})
	s := start(t, t.TempDir(), url)
	base, n := "http://"+s.Addr("http"), *fileBytes/(5*words+200)
	file, err := tryUpload(t.Context(), base, n, words)
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	j := awaitPatiently(t, base, create(t, base, file).ID, ended)
	peak := harness.PeakOf(t, s.PID())
	t.Logf("%d lines of 100 KB in %v; peak memory %d MiB", n, time.Since(begun).Round(time.Millisecond), peak)
	mustHaveEach(t, base, j, n)
	if most := 200; peak > most {
		t.Errorf("%d MiB of memory, want at most %d", peak, most)
	}
}

// part is a part of an installation that can be killed.
type part struct {
	name          string
	kill, restart func()
}

func (s *service) part(t *testing.T, name string) part {
	return part{name, func() { s.kill(t) }, func() { s.restart(t) }}
}

// TestPartsKilled kills a part at random (kill -9) now and then, while batches run one after another: a batch server with SQLite, one of two that
// share PostgreSQL and an S3 store, these, the picker, the gateway or an engine. Every line of every batch has one result, and it is an answer.
func TestPartsKilled(t *testing.T) {
	t.Parallel()
	const lines = 2000
	g, installation := newGateway(t), newShared(t)
	servers := []*service{serve(t, again(installation.program(g.url()))), serve(t, again(installation.program(g.url())))}
	single := serve(t, again(program(t.TempDir(), g.url())))
	addresses := []string{"http://" + servers[0].Addr("http"), "http://" + servers[1].Addr("http")}
	alone := "http://" + single.Addr("http")
	parts := []part{
		single.part(t, "batch server with SQLite"), servers[0].part(t, "batch server"), servers[1].part(t, "other batch server"),
		g.picker.part(t, "picker"), g.front.part(t, "gateway"), g.engines[0].part(t, "engine"),
		{"PostgreSQL", installation.database.Kill, installation.database.Restart},
		{"S3 store", installation.objects.Kill, func() { installation.objects.Restart(t) }},
	}
	whole, abort := context.WithCancel(t.Context())
	ctx, stop := context.WithCancel(whole) // no further batches
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	defer abort()
	failed := make(chan error, 2) // one of each loop
	for _, of := range [][]string{addresses, {alone}} {
		running.Go(func() {
			for ctx.Err() == nil {
				if err := runBatch(whole, of, lines); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	killed := map[string]int{}
	var next []int // parts, in a random order, so that each gets its turn
	ticker := time.NewTicker(*partsGap)
	defer ticker.Stop()
	for end := time.After(*partsFor); ctx.Err() == nil; {
		select {
		case err := <-failed:
			t.Fatal(err)
		case <-ticker.C:
			if len(next) == 0 {
				next = rand.Perm(len(parts))
			}
			p := parts[next[0]]
			next = next[1:]
			p.kill()
			killed[p.name]++
			<-time.After(rand.N(*partsGap / 4)) // it is away for a while
			p.restart()
		case <-end:
			stop()
		}
	}
	running.Wait()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	for where, base := range map[string]string{"PostgreSQL and S3": addresses[0], "SQLite": alone} {
		all := batches(t, base)
		for _, id := range all {
			mustHaveEach(t, base, awaitPatiently(t, base, id, ended), lines)
		}
		t.Logf("%s: %d batches of %d lines, each line with one answer", where, len(all), lines)
	}
	t.Logf("killed: %v", killed)
}

// batches returns the ids of all batches of a server. More may have been made than the client knows, because an answer was lost.
func batches(t *testing.T, base string) (ids []string) {
	t.Helper()
	for after := ""; ; {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/v1/batches?limit=100&after="+after, nil)
		if err != nil {
			t.Fatal(err)
		}
		var page struct {
			Data    []job
			HasMore bool `json:"has_more"`
		}
		ask(t, request, &page)
		for _, j := range page.Data {
			ids = append(ids, j.ID)
		}
		if !page.HasMore {
			return ids
		}
		after = ids[len(ids)-1]
	}
}

// runBatch has a batch run to its end, by whatever server answers, and tries again what fails.
func runBatch(ctx context.Context, servers []string, lines int) error {
	some := func() string { return servers[rand.IntN(len(servers))] }
	var file string
	var j job
	for _, step := range []func() error{
		func() (err error) { file, err = tryUpload(ctx, some(), lines, 110); return err },
		func() (err error) { j, err = tryCreate(ctx, some(), file); return err },
		func() error {
			now, err := look(ctx, some(), j.ID)
			if err == nil && !ended(now) {
				err = fmt.Errorf("the batch is %+v", now)
			}
			return err
		},
	} {
		if err := persist(ctx, step); err != nil {
			return err
		}
	}
	return nil
}

// persist calls f until it succeeds, for some minutes.
func persist(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-poll.C:
		}
	}
}
