package worker

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/store"
)

// Every line has one result, in the order of the input, and requests say what they are.
func TestBatch(t *testing.T) {
	b := newBench(t, func(w http.ResponseWriter, r *http.Request, prompt string) {
		switch prompt {
		case "7":
			w.WriteHeader(400)
			fmt.Fprint(w, `{"error":{}}`)
		case "8":
			w.WriteHeader(404)
			fmt.Fprint(w, "<html>")
		case "9":
			fmt.Fprint(w, "not JSON")
		case "10":
			fmt.Fprint(w, "{\"text\":\"not UTF-8: \xff\"}")
		default:
			echo(w, r, prompt)
		}
	})
	b.work()
	const n = 3000
	got := b.wait(b.create(lines(n), time.Hour), ended)
	if got.Status != batch.Completed || got.Counts != (batch.Counts{Total: n, Completed: n - 4, Failed: 4}) || got.Model != "m" {
		t.Fatalf("the batch is %+v", got)
	}
	b.mustHaveAll(got, n)
	outputs := b.read(got.OutputFile)
	for i, o := range outputs {
		if o.Response.StatusCode != 200 || o.Response.Body.Text != o.CustomID || o.Error != nil || !strings.HasPrefix(o.ID, "batch_req_") {
			t.Errorf("line %s: %+v", o.CustomID, o)
		}
		if i > 0 && number(t, o) < number(t, outputs[i-1]) {
			t.Errorf("%s follows %s", o.CustomID, outputs[i-1].CustomID)
		}
	}
	failures := b.read(got.ErrorFile)
	if failures[0].Response.StatusCode != 400 || failures[1].Response.StatusCode != 404 || failures[2].Error.Code != batch.CodeBadAnswer || failures[3].Error.Code != batch.CodeBadAnswer {
		t.Errorf("failures are %+v", failures)
	}
	ids := map[string]bool{}
	for _, r := range b.requests() {
		ids[r.header.Get("X-Request-Id")] = true
		for name, want := range map[string]string{"X-Llm-D-Inference-Objective": "batch", "X-Llm-D-Inference-Fairness-Id": "tenant", "Authorization": "Bearer secret", "Content-Type": "application/json"} {
			if r.header.Get(name) != want {
				t.Fatalf("%s is %q, want %q", name, r.header.Get(name), want)
			}
		}
	}
	if len(ids) != n || len(b.requests()) != n {
		t.Errorf("%d requests with %d ids, want %d", len(b.requests()), len(ids), n)
	}
}

func number(t *testing.T, o outcome) int {
	t.Helper()
	n, err := strconv.Atoi(o.CustomID)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A line is tried again with the same id. One that fails while others are served fails in the end; one that is refused for want of
// capacity does not.
func TestTriesAgain(t *testing.T) {
	var refused atomic.Int64
	b := newBench(t, func(w http.ResponseWriter, r *http.Request, prompt string) {
		switch {
		case prompt == "3":
			w.WriteHeader(500)
			fmt.Fprint(w, `{"error":{}}`)
		case prompt == "4" && refused.Add(1) <= 8:
			w.Header().Set("X-Llm-D-Request-Dropped-Reason", "rejected-saturated")
			w.WriteHeader(503)
		default:
			echo(w, r, prompt)
		}
	})
	b.work()
	const n = 100
	got := b.wait(b.create(lines(n), time.Hour), ended)
	if got.Status != batch.Completed || got.Counts.Failed != 1 {
		t.Fatalf("the batch is %+v", got)
	}
	b.mustHaveAll(got, n)
	if failure := b.read(got.ErrorFile)[0]; failure.CustomID != "3" || failure.Response.StatusCode != 500 {
		t.Errorf("the failure is %+v", failure)
	}
	ids, tries := map[string]bool{}, 0
	for _, r := range b.requests() {
		if r.line == "3" {
			ids[r.header.Get("X-Request-Id")] = true
			tries++
		}
	}
	if len(ids) != 1 || tries < 5 || tries > 10 {
		t.Errorf("%d tries with %d ids", tries, len(ids))
	}
}

// hold answers prompts below n, and holds the other requests until they are cut, or release is closed.
func hold(n int, release <-chan struct{}) func(http.ResponseWriter, *http.Request, string) {
	return func(w http.ResponseWriter, r *http.Request, prompt string) {
		if i, err := strconv.Atoi(prompt); err != nil || i >= n {
			select {
			case <-r.Context().Done():
				return
			case <-release:
			}
		}
		echo(w, r, prompt)
	}
}

// A line under which the connection breaks each time ends as an error after a few tries, although no other line shows that the upstream works.
func TestLineThatBreaksTheEngine(t *testing.T) {
	b := newBench(t, func(http.ResponseWriter, *http.Request, string) { panic(http.ErrAbortHandler) })
	b.work()
	got := b.wait(b.create(lines(1), time.Hour), ended)
	if got.Status != batch.Completed || got.Counts.Failed != 1 {
		t.Fatalf("the batch is %+v", got)
	}
	if failure := b.read(got.ErrorFile)[0]; failure.Response != nil || failure.Error.Code != batch.CodeUnreachable {
		t.Errorf("the failure is %+v", failure)
	}
	if tries := len(b.requests()); tries != 5 {
		t.Errorf("%d tries, want 5", tries)
	}
}

// A cancelled batch has the results that there are, and an error for each other line.
func TestCancel(t *testing.T) {
	b := newBench(t, hold(5, nil))
	w := b.work()
	const n = 200
	id := b.create(lines(n), time.Hour)
	b.wait(id, func(got batch.Batch) bool { return got.Counts.Completed >= 1 })
	if _, err := b.store.Cancel(t.Context(), "tenant", id, time.Now().UnixMilli()); err != nil {
		t.Fatal(err)
	}
	w.Wake()
	got := b.wait(id, ended)
	if got.Status != batch.Cancelled || got.Counts.Completed < 1 || got.Counts.Completed > 5 || got.Counts.Failed != 0 || got.Counts.Total != n {
		t.Errorf("the batch is %+v", got)
	}
	b.mustHaveAll(got, n)
	for _, o := range b.read(got.ErrorFile) {
		if o.Error.Code != batch.CodeCancelled || o.Response != nil {
			t.Errorf("line %s: %+v", o.CustomID, o)
		}
	}
}

// A batch whose window ends has the same, with another code. The window is long enough to validate the file on this machine: otherwise the batch
// expires without lines, and the next window is longer.
func TestExpiry(t *testing.T) {
	b := newBench(t, hold(5, nil))
	b.work()
	const n = 200
	var got batch.Batch
	for window := time.Second; got.Counts.Total == 0 && window < patience; window *= 2 {
		got = b.wait(b.create(lines(n), window), ended)
	}
	if got.Status != batch.Expired || got.Counts.Failed != 0 || got.Times.Expired < got.Times.Expires {
		t.Errorf("the batch is %+v", got)
	}
	b.mustHaveAll(got, n)
	for _, o := range b.read(got.ErrorFile) {
		if o.Error.Code != batch.CodeExpired {
			t.Errorf("line %s: %+v", o.CustomID, o)
		}
	}
}

// A worker that stops waits for the requests in flight, and another one goes on where it was: what has an answer is not sent again.
func TestStopAndGoOn(t *testing.T) {
	release := make(chan struct{})
	b := newBench(t, hold(50, release))
	w := b.work()
	const n = 100
	id := b.create(lines(n), time.Hour)
	b.wait(id, func(got batch.Batch) bool { return got.Counts.Completed >= 1 })
	w.cancel()
	close(release)
	w.stop()
	if first := len(b.requests()); first == n {
		t.Errorf("the first worker has sent all %d lines", first)
	}
	b.work()
	got := b.wait(id, ended)
	if got.Status != batch.Completed || got.Counts.Completed != n {
		t.Errorf("the batch is %+v", got)
	}
	b.mustHaveAll(got, n)
	if all := len(b.requests()); all != n {
		t.Errorf("%d requests, want %d", all, n)
	}
}

// What a worker has computed after its lease was given to another one does not count.
func TestLostLeaseOfAWorker(t *testing.T) {
	release := make(chan struct{})
	b := newBench(t, hold(5, release))
	w := b.work()
	const n = 10
	id := b.create(lines(n), time.Hour)
	b.wait(id, func(got batch.Batch) bool { return got.Counts.Completed == 5 })
	leases, err := b.store.Leases(t.Context())
	for _, l := range leases {
		err = errors.Join(err, b.store.Revoke(t.Context(), l))
	}
	if len(leases) != 1 || err != nil {
		t.Fatalf("revoking %+v: %v", leases, err)
	}
	taken, err := b.store.Lease(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	close(release)
	w.stop()
	if saved, err := b.store.SavedLines(t.Context(), taken); err != nil || len(saved) != 5 {
		t.Errorf("%d lines are saved, %v; want those of before", len(saved), err)
	}
	if err := b.store.Release(t.Context(), taken); err != nil {
		t.Fatal(err)
	}
	b.work()
	got := b.wait(id, ended)
	if got.Counts.Completed != n {
		t.Errorf("the batch is %+v", got)
	}
	b.mustHaveAll(got, n)
}

// Lines with the same beginning follow one another, whatever the order of the file.
func TestPrefixesTogether(t *testing.T) {
	b := newBench(t, echo)
	b.to.InFlight = 1
	b.work()
	var content strings.Builder
	const n, prefixes = 60, 3
	for i := range n {
		content.WriteString(line(fmt.Sprint(i), fmt.Sprintf("prefix %d of %d", i%prefixes, i)))
	}
	b.wait(b.create(content.String(), time.Hour), ended)
	changes, last := 0, ""
	for _, r := range b.requests() {
		if prefix := r.line[:len("prefix 0")]; prefix != last {
			changes, last = changes+1, prefix
		}
	}
	if changes != prefixes {
		t.Errorf("the prefix changes %d times, want %d", changes, prefixes)
	}
}

func TestChoose(t *testing.T) {
	open := func(id string, status batch.Status, waiting, leased int64, edit func(*store.Open)) store.Open {
		o := store.Open{Waiting: waiting, Leased: leased}
		o.ID, o.Status, o.Counts.Total, o.Times.Expires = id, status, 100, 1000
		if edit != nil {
			edit(&o)
		}
		return o
	}
	for _, c := range []struct {
		name string
		open []store.Open
		want string
	}{
		{"none", nil, ""},
		{"nothing waits", []store.Open{open("a", batch.InProgress, 0, 3, nil), open("b", batch.Validating, 1, 0, nil)}, ""},
		{"fewest run", []store.Open{open("a", batch.InProgress, 5, 3, nil), open("b", batch.InProgress, 5, 2, nil)}, "b"},
		{"oldest", []store.Open{open("a", batch.InProgress, 5, 2, func(o *store.Open) { o.Times.Created = 2 }), open("b", batch.InProgress, 5, 2, nil)}, "b"},
		{"behind", []store.Open{open("a", batch.InProgress, 5, 0, nil), open("b", batch.InProgress, 5, 9, func(o *store.Open) { o.Times.Expires, o.Counts.Completed = 150, 50 })}, "b"},
		{"in time", []store.Open{open("a", batch.InProgress, 5, 0, nil), open("b", batch.InProgress, 5, 9, func(o *store.Open) { o.Times.Expires, o.Counts.Completed = 150, 70 })}, "a"},
		{"the one that ends first", []store.Open{open("a", batch.InProgress, 5, 0, func(o *store.Open) { o.Times.Expires = 160 }), open("b", batch.InProgress, 5, 9, func(o *store.Open) { o.Times.Expires = 150 })}, "b"},
		{"closing", []store.Open{open("a", batch.InProgress, 5, 0, func(o *store.Open) { o.Times.Expires = 150 }), open("b", batch.Cancelling, 5, 9, nil)}, "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			if chosen := choose(c.open, 100); chosen != nil {
				got = chosen.ID
			}
			if got != c.want {
				t.Errorf("chose %q, want %q", got, c.want)
			}
		})
	}
}

func TestValidation(t *testing.T) {
	type found struct {
		code string
		line int64
	}
	good := line("a", "x")
	for _, c := range []struct {
		name, content string
		want          []found
		lines         int
	}{
		{"good", good + line("b", "y"), nil, 2},
		{"without a line feed at the end", strings.TrimSpace(good), nil, 1},
		{"of Windows", "\ufeff" + strings.ReplaceAll(good+line("b", "y"), "\n", "\r\n"), nil, 2},
		{"with empty lines", "\n" + good + " \t\n\n" + line("b", "y"), nil, 2},
		{"empty", "\n\n", []found{{"empty_file", 0}}, 0},
		{"not JSON", good + "x\n" + line("b", "y"), []found{{"invalid_json_line", 2}}, 3},
		{"cut", good + `{"custom_id":"b"`, []found{{"invalid_json_line", 2}}, 2},
		{"the same id", good + line("b", "y") + "\n" + good, []found{{"duplicate_custom_id", 4}}, 3},
		{"the same id, written otherwise", good + strings.Replace(good, `"a"`, `"\u0061"`, 1), []found{{"duplicate_custom_id", 2}}, 2},
		{"another endpoint", good + strings.Replace(line("b", ""), endpoint, "/v1/embeddings", 1), []found{{"mismatched_url", 2}}, 2},
		{"another model", good + strings.Replace(line("b", ""), `"m"`, `"n"`, 1), []found{{"mismatched_model", 2}}, 2},
		{"several", "x\n" + good + good + "y\n", []found{{"invalid_json_line", 1}, {"duplicate_custom_id", 3}, {"invalid_json_line", 4}}, 4},
		{"too many", lines(11), []found{{"too_many_lines", 0}}, 10},
		{"the same id before a long line", good + good + line("b", strings.Repeat("x", batch.MaxLine)), []found{{"duplicate_custom_id", 2}, {"line_too_long", 3}}, 2},
		{"a long line", good + line("b", strings.Repeat("x", batch.MaxLine)) + good, []found{{"line_too_long", 2}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := newValidation(endpoint, 10, int64(len(c.content)))
			if err := v.read(strings.NewReader(c.content), func() error { return nil }); err != nil {
				t.Fatal(err)
			}
			if suspects := v.duplicates(); len(suspects) > 0 {
				if err := v.compare(strings.NewReader(c.content), suspects); err != nil {
					t.Fatal(err)
				}
			}
			var got []found
			for _, p := range v.problems {
				got = append(got, found{p.Code, p.Line})
			}
			slices.SortFunc(got, func(a, b found) int { return int(a.line - b.line) })
			if !slices.Equal(got, c.want) || len(v.ids) != c.lines {
				t.Errorf("%d lines, problems %v; want %d, %v", len(v.ids), v.problems, c.lines, c.want)
			}
		})
	}
}

// Chunks cover all lines of a file, without a gap, and none is larger than the bounds.
func TestChunks(t *testing.T) {
	content := lines(5000)
	v := newValidation(endpoint, 10_000, int64(len(content)))
	if err := v.read(strings.NewReader(content), func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	var end, next int64
	for _, c := range v.chunks {
		if c.Start != end || c.First != next || c.Lines > chunkLines || c.Bytes > leastBytes+200 {
			t.Errorf("chunk %+v follows offset %d, line %d", c, end, next)
		}
		if at := content[c.Start : c.Start+c.Bytes]; strings.Count(at, "\n") != int(c.Lines) || !strings.HasPrefix(at, fmt.Sprintf(`{"custom_id":"%d"`, c.First)) {
			t.Errorf("chunk %+v has %d lines", c, strings.Count(at, "\n"))
		}
		end, next = c.Start+c.Bytes, c.First+c.Lines
	}
	if end != int64(len(content)) || next != 5000 {
		t.Errorf("the chunks end at offset %d, line %d", end, next)
	}
}

// A file with errors makes its batch fail, with the numbers of the lines.
func TestInvalidFile(t *testing.T) {
	b := newBench(t, echo)
	b.work()
	got := b.wait(b.create(lines(2)+"x\n", time.Hour), ended)
	if got.Status != batch.Failed || len(got.Problems) != 1 || got.Problems[0].Line != 3 {
		t.Errorf("the batch is %+v", got)
	}
	if n := len(b.requests()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// More files than are read at a time expire together. Old batches follow, but not those that have not ended.
func TestExpiredFilesAreDeleted(t *testing.T) {
	b := newBench(t, echo)
	for i := range tidyRows + 1 {
		f := batch.File{ID: fmt.Sprint("f", i), Tenant: "tenant", Expires: 1}
		if err := b.store.AddFile(t.Context(), f, batch.Amounts{}); err != nil {
			t.Fatal(err)
		}
	}
	id := b.create(lines(1), time.Hour)
	if err := b.newWorker().deleteExpired(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := b.store.Files(t.Context(), "tenant", "", store.Page{Limit: 10})
	if err != nil || len(left) != 1 {
		t.Errorf("%d files are left, %v; want the one that does not expire", len(left), err)
	}
	if _, err := b.store.Batch(t.Context(), "tenant", id); err != nil {
		t.Errorf("the open batch: %v", err)
	}
}
