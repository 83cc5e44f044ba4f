package sidecar

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/recent"
)

// told is a log that tests read.
type told struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *told) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// line returns the access log of a request, nil if there is none.
func (l *told) line(t *testing.T, id string) (line map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for text := range strings.Lines(l.text.String()) {
		var got map[string]any
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got["msg"] == "request served" && got["request_id"] == id {
			line = got
		}
	}
	return line
}

// logging has the sidecar log to l.
func logging(l *told, level slog.Level) option {
	return func(_ *Config, to *Telemetry) {
		to.Log = slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: level}))
	}
}

// record returns what the admin port tells of a request, and the page as it is.
func (r *rig) record(t *testing.T, id string) (recent.Served, string) {
	t.Helper()
	mux, w := http.NewServeMux(), httptest.NewRecorder()
	r.Recent().Register(mux)
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, recent.Path+"/"+id, nil))
	var all []recent.Served
	if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil || len(all) != 1 {
		t.Fatalf("the admin port tells of %s: %d requests, %v\n%s", id, len(all), err, w.Body)
	}
	return all[0], w.Body.String()
}

// Addresses inside the cluster go to clients only where the operator wants it, and only the sidecar tells them.
func TestPodsHeader(t *testing.T) {
	const lie = "decode=6.6.6.6:1"
	fast := says(200, "application/json", wholeAnswer, pd.HeaderPods, lie)
	for _, c := range []struct {
		name   string
		tell   bool
		decode act
		header []string // further headers of the request
		want   string   // D and P stand for the addresses of this pod and of prefill's
	}{
		{"not wanted", false, fast, nil, ""},
		{"not wanted, local", false, fast, []string{pd.HeaderMode, "bypass"}, ""},
		{"not wanted, refused", false, fast, []string{pd.HeaderMode, "maybe"}, ""},
		{"remote", true, fast, nil, "decode=D;prefill=P"},
		{"a stream", true, streams(firstEvent, secondEvent, doneEvent), nil, "decode=D;prefill=P"},
		{"local", true, fast, []string{pd.HeaderMode, "bypass"}, "decode=D"},
		{"fallen back", true, then(says(500, "text/plain", "")), nil, "decode=D"},
		{"refused", true, fast, []string{pd.HeaderMode, "maybe"}, "decode=D"},
		{"a client names others", true, fast, []string{pd.HeaderPods, lie}, "decode=D;prefill=P"},
	} {
		t.Run(c.name, func(t *testing.T) {
			decode, prefill := startEngine(t, c.decode), startEngine(t, offering(handoffParams))
			s := startRig(t, decode.addr, set(func(cfg *Config) { cfg.Tell.Pods = c.tell }))
			got := post(t, s.url+completionsPath, ask(false).body, append([]string{pd.HeaderPrefill, prefill.addr}, c.header...)...)
			want := strings.NewReplacer("D", strings.TrimPrefix(s.url, "http://"), "P", prefill.addr).Replace(c.want)
			if pods := got.header.Get(pd.HeaderPods); pods != want || len(got.header.Values(pd.HeaderPods)) > 1 {
				t.Errorf("%s is %q, want %q", pd.HeaderPods, got.header.Values(pd.HeaderPods), want)
			}
			for _, r := range append(decode.requests(), prefill.requests()...) {
				if r.Header.Get(pd.HeaderPods) != "" {
					t.Errorf("an engine got %s", r.Header.Get(pd.HeaderPods))
				}
			}
		})
	}
}

// The access log has the requests that an operator asks about at info, and no request that only its client spoiled.
func TestAccessLog(t *testing.T) {
	fails, serves := says(500, "text/plain", ""), ask(false).answer()
	for _, c := range []struct {
		name    string
		slow    time.Duration
		decode  []act
		prefill act
		mode    string
		notable any // of the line at info; nil: there is none
		want    map[string]any
	}{
		{"served", 0, []act{serves}, offering(handoffParams), "", nil, nil},
		{"no slow one", time.Hour, []act{serves}, offering(handoffParams), "", nil, nil},
		{"the client's fault", 0, []act{serves}, offering(handoffParams), "maybe", nil, nil},
		{"slow", 1, []act{serves}, offering(handoffParams), "", "slow", map[string]any{"status": 200.0, "decision": "remote;reason=external;attempts=1;candidate=0", "prefill": "P"}},
		{"fallen back", 0, []act{serves}, fails, "", "fallback", map[string]any{"status": 200.0, "decision": "local;reason=prefill-failed;attempts=1;candidate=0", "prefill": "P"}},
		{"failed", 0, []act{fails}, offering(handoffParams), "bypass", "failed", map[string]any{"status": 500.0, "decision": "local;reason=bypassed", "prefill": ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log told
			prefill := startEngine(t, c.prefill)
			s := startRig(t, startEngine(t, c.decode...).addr, logging(&log, slog.LevelInfo), set(func(cfg *Config) { cfg.Tell.Slow = c.slow }))
			header := []string{pd.HeaderPrefill, prefill.addr, pd.HeaderRequestID, "r-1"}
			if c.mode != "" {
				header = append(header, pd.HeaderMode, c.mode)
			}
			post(t, s.url+completionsPath, ask(false).body, header...)
			s.end()
			line := log.line(t, "r-1")
			if line["notable"] != c.notable {
				t.Fatalf("the access log is %v, want notable %v", line, c.notable)
			}
			for name, want := range c.want {
				if want == "P" {
					want = prefill.addr
				}
				if line[name] != want {
					t.Errorf("%s is %v, want %v", name, line[name], want)
				}
			}
			if c.notable != nil && line["decode"] != strings.TrimPrefix(s.url, "http://") {
				t.Errorf("decode is %v, want %s", line["decode"], s.url)
			}
		})
	}
}

// TestRecord: the admin port tells the whole story of a request, and neither it nor the log has any text of the prompt or the answer.
func TestRecord(t *testing.T) {
	const secret = "Kassandra"
	answer := says(200, "application/json", strings.Replace(wholeAnswer, `"text":"`, `"text":"`+secret, 1))
	errorAnswer := says(500, "application/json", `{"error":{"message":"cannot serve `+secret+`"}}`)
	body := strings.Replace(ask(false).body, "a b c", secret, 1)
	for _, c := range []struct {
		name     string
		decode   []act
		prefill  act
		legs     string // leg status, in their order
		releases string // way result
		served   recent.Served
	}{
		{"remote", []act{answer}, offering(handoffParams), "prefill 200, decode 200", "",
			recent.Served{Planned: "remote", Decision: "remote;reason=uncached;attempts=1;candidate=0", Status: 200, State: "streaming", End: "done"}},
		{"prefill fails", []act{answer}, errorAnswer, "prefill 500, local 200", "",
			recent.Served{Planned: "remote", Decision: "local;reason=prefill-failed;attempts=1;candidate=0", Status: 200, State: "streaming", End: "done", Notable: "fallback"}},
		{"decode fails once", []act{errorAnswer, answer}, offering(handoffParams), "prefill 200, decode 500, local 200", "cancel ok",
			recent.Served{Planned: "remote", Decision: transferFailed, Status: 200, State: "streaming", End: "done", Notable: "fallback"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log told
			prefill := startEngine(t, c.prefill)
			s := startRig(t, startEngine(t, c.decode...).addr, logging(&log, slog.LevelDebug))
			post(t, s.url+completionsPath, body, pd.HeaderPrefill, prefill.addr, pd.HeaderPlan, remotePlan, pd.HeaderRequestID, "r-1")
			s.end()
			got, page := s.record(t, "r-1")
			if byPlan, _ := s.record(t, planID); byPlan.ID != "r-1" {
				t.Errorf("the plan's id leads to %q", byPlan.ID)
			}
			var legs, releases []string
			for _, l := range got.Legs {
				legs = append(legs, fmt.Sprint(l.Leg, " ", l.Status))
				if l.Engine == "" || l.Millis <= 0 || l.At < 0 || l.Leg == "prefill" && l.Engine != prefill.addr {
					t.Errorf("leg %+v", l)
				}
			}
			for _, r := range got.Releases {
				releases = append(releases, r.Way+" "+r.Result)
			}
			if strings.Join(legs, ", ") != c.legs || strings.Join(releases, ", ") != c.releases {
				t.Errorf("legs %q, releases %q, want %q and %q", legs, releases, c.legs, c.releases)
			}
			short := recent.Served{Planned: got.Planned, Decision: got.Decision, Status: got.Status, State: got.State, End: got.End, Notable: got.Notable}
			if fmt.Sprint(short) != fmt.Sprint(c.served) {
				t.Errorf("got %+v, want %+v", short, c.served)
			}
			if got.Decode != strings.TrimPrefix(s.url, "http://") || got.Prefill != prefill.addr || got.PlanID != planID || !strings.Contains(got.Timing, "first;dur=") || got.Millis <= 0 {
				t.Errorf("record %+v", got)
			}
			for what, text := range map[string]string{"admin page": page, "log": log.text.String()} {
				if strings.Contains(text, secret) {
					t.Errorf("the %s has text of the prompt or the answer:\n%s", what, text)
				}
			}
		})
	}
}

// TestRecordIsBounded: a request takes no more memory than its size says, however many legs it has.
func TestRecordIsBounded(t *testing.T) {
	prefill, decode := startEngine(t, says(503, "text/plain", "")), startEngine(t, ask(false).answer())
	s := startRig(t, decode.addr, set(func(c *Config) { c.Prefill.MaxRetries, c.Prefill.RetryBackoff, c.Tell.Recent = 20, 1, 1 }))
	for _, id := range []string{"r-1", "r-2"} {
		post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, prefill.addr, pd.HeaderRequestID, id)
	}
	s.end()
	kept := s.Recent().Latest()
	if len(kept) != 1 {
		t.Fatalf("%d requests are kept, want 1", len(kept))
	}
	id := "r-2"
	if kept[0].Is("r-1") { // it ended later: a handler may still run when its client has the answer
		id = "r-1"
	}
	if got, _ := s.record(t, id); len(got.Legs) != 16 || got.LegsLeft != 6 {
		t.Errorf("%d legs and %d left out, want 16 and 6", len(got.Legs), got.LegsLeft)
	}
}

// A sidecar that keeps no records serves requests.
func TestNoRecords(t *testing.T) {
	prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, says(500, "text/plain", ""), ask(false).answer())
	s := startRig(t, decode.addr, set(func(c *Config) { c.Tell.Recent = 0 }))
	post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, prefill.addr).mustBe(t, 200, transferFailed)
	s.end()
	mux, w := http.NewServeMux(), httptest.NewRecorder()
	s.Recent().Register(mux)
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, recent.Path, nil))
	if b, _ := io.ReadAll(w.Body); strings.TrimSpace(string(b)) != "[]" {
		t.Errorf("the admin port tells %s", b)
	}
}
