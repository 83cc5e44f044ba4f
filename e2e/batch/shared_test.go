package batch

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/postgres"
	"github.com/tandem-serving/tandem/e2e/s3"
	"github.com/tandem-serving/tandem/stack"
)

// shared is a database and a bucket, which batch servers share.
type shared struct {
	database     *postgres.Server
	objects      *s3.Server
	file, bucket string
}

func newShared(t *testing.T) *shared {
	t.Helper()
	s := &shared{database: postgres.Start(t), objects: s3.Start(t), file: filepath.Join(t.TempDir(), "database")}
	s.bucket = s.objects.Bucket(t, "batches")
	if err := os.WriteFile(s.file, []byte(s.database.Address()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *shared) program(upstream string) stack.Program {
	return stack.Program{Name: "batch", Path: filepath.Join(harness.BinDir, "batch"), Env: s3.Credentials(),
		Args: []string{"--database-file=" + s.file, "--bucket=" + s.bucket, "--upstream=" + upstream, "--port=0", "--metrics-port=0"}}
}

// TestSharedOpenAIClient has the stock client do the same with PostgreSQL and a bucket, and two servers that share the work.
func TestSharedOpenAIClient(t *testing.T) {
	python := stockPython(t)
	s := newShared(t)
	engine := harness.StartSim(t, "engine")
	first, _ := harness.Start(t, s.program("http://"+engine.Addr)), harness.Start(t, s.program("http://"+engine.Addr))
	runScript(t, python, "openai_batch.py", first.Addr("http"))
}

// TestSharedKilled kills servers that share a batch (kill -9), and the database once, at random moments. Every line has one result.
func TestSharedKilled(t *testing.T) {
	const lines, servers, deaths = 6000, 3, 4
	s := newShared(t)
	url, requests := instant(t, upTo(20*time.Millisecond))
	running := make([]harness.Program, servers)
	for i := range running {
		running[i] = launchProgram(t, s.program(url))
	}
	base := func(i int) string { return "http://" + running[i%servers].Addr("http") }
	id := create(t, base(0), upload(t, base(0), lines)).ID
	for death := range deaths {
		least := (death + 1) * lines / (deaths + 2)
		awaitPatiently(t, base(death), id, func(j job) bool { return ended(j) || j.Counts.Completed >= least })
		if death == deaths/2 {
			s.database.Kill()
			s.database.Restart()
			continue
		}
		if err := running[death%servers].Kill(); err != nil {
			t.Fatal(err)
		}
		<-running[death%servers].Done()
		running[death%servers] = launchProgram(t, s.program(url))
	}
	mustHaveEach(t, base(0), awaitPatiently(t, base(0), id, ended), lines)
	t.Logf("%d lines, %d servers, %d deaths, %d requests", lines, servers, deaths, requests.Load())
}

// awaitPatiently waits until a batch is as it should be, while a server may say that it cannot tell. The chunks of a killed server wait for
// the end of their leases.
func awaitPatiently(t *testing.T, base, id string, ok func(job) bool) job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		j, err := look(ctx, base, id)
		if err == nil && ok(j) {
			return j
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the batch stays %+v, %v", j, err)
		case <-poll.C:
		}
	}
}

func look(ctx context.Context, base, id string) (j job, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/batches/"+id, nil)
	if err != nil {
		return j, err
	}
	answer, err := harness.Client.Do(request)
	if err != nil {
		return j, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return j, fmt.Errorf("status %s", answer.Status)
	}
	return j, json.NewDecoder(answer.Body).Decode(&j)
}
