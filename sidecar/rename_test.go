package sidecar

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// renamed is the picker's header for a client that asked for llama, which big-7b answers.
var renamed = pd.Rename{Asked: "llama \"3\"", Answers: "big-7b"}.String()

const (
	engineWhole  = `{"id":"cmpl-1","model":"big-7b","choices":[{"index":0,"text":" big-7b"}],"usage":{"prompt_tokens":40,"completion_tokens":1}}`
	engineEvents = "data: {\"model\":\"big-7b\",\"choices\":[{\"text\":\" big-7b\"}]}\n\n" +
		"data: {\"model\":\"big-7b\",\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":1}}\n\n" + doneEvent
)

// clients returns an answer as the client must see it.
func clients(answer string) string {
	return strings.ReplaceAll(answer, `"model":"big-7b"`, `"model":"llama \"3\""`)
}

// The client gets the name it asked for, locally and remotely, wherever the answer is cut.
func TestNameIsGivenBack(t *testing.T) {
	for name, way := range ways {
		t.Run(name+"/whole", func(t *testing.T) {
			for _, answer := range []act{says(200, "application/json", engineWhole), chunked(200, "application/json; charset=utf-8", engineWhole)} {
				for _, te := range []string{"", "trailers"} { // without trailers the answer is not buffered
					s, header := serve(t, way, handoffParams, answer)
					got := post(t, s.url+completionsPath, ask(false).body, append(header, pd.HeaderModel, renamed, "TE", te)...)
					if got.status != 200 || got.err != nil || got.body != clients(engineWhole) {
						t.Errorf("%d %s, %v", got.status, got.body, got.err)
					}
					if l := got.header.Get("Content-Length"); l != "" && l != strconv.Itoa(len(got.body)) {
						t.Errorf("Content-Length %s of %d bytes", l, len(got.body))
					}
				}
			}
		})
		t.Run(name+"/stream", func(t *testing.T) {
			var at atomic.Int64
			s, header := serve(t, way, handoffParams, func(w http.ResponseWriter, r *asked) {
				i := at.Add(7) - 7
				streams(engineEvents[:i], engineEvents[i:])(w, r)
			})
			for at.Load() < int64(len(engineEvents)) {
				got := post(t, s.url+completionsPath, ask(true).body, append(header, pd.HeaderModel, renamed, "TE", "trailers")...)
				if got.body != clients(engineEvents) || got.err != nil || got.status != 200 {
					t.Fatalf("cut before %d: %d %q, %v", at.Load(), got.status, got.body, got.err)
				}
				if out := got.trailer.Get(pd.HeaderOutcome); !strings.HasPrefix(out, "done;prompt=40") {
					t.Errorf("outcome %q", out)
				}
			}
		})
	}
}

// An event does not wait for the next one.
func TestNameIsGivenBackAtOnce(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			first, rest, _ := strings.Cut(engineEvents, "\n\n")
			first += "\n\n"
			g := newGate()
			s, header := serve(t, way, handoffParams, then(streams(first), g.act, streams(rest)))
			resp := mustOpen(t, s.url+completionsPath, ask(true).body, append(header, pd.HeaderModel, renamed)...)
			if got := readEvent(t, resp.Body); got != clients(first) {
				t.Errorf("first event %q", got)
			}
			close(g.opened)
			if got, err := io.ReadAll(resp.Body); err != nil || string(got) != clients(rest) {
				t.Errorf("rest %q, %v", got, err)
			}
		})
	}
}

func TestNameStaysTheEngines(t *testing.T) {
	errorBody := `{"error":{"message":"The model big-7b does not exist.","code":404}}`
	for _, c := range []struct {
		name   string
		engine act
		want   string
		header []string
	}{
		{"nothing was renamed", says(200, "application/json", engineWhole), engineWhole, nil},
		{"another model answered", says(200, "application/json", engineWhole), engineWhole, []string{pd.HeaderModel, "llama;answers=small"}},
		{"an error that names it", says(404, "application/json", errorBody), errorBody, []string{pd.HeaderModel, renamed}},
		{"no JSON", says(200, "text/plain", engineWhole), engineWhole, []string{pd.HeaderModel, renamed}},
		{"no type", says(200, "", engineWhole), engineWhole, []string{pd.HeaderModel, renamed}},
	} {
		t.Run(c.name, func(t *testing.T) {
			engine := startEngine(t, c.engine)
			s := startRig(t, engine.addr)
			got := post(t, s.url+completionsPath, ask(false).body, c.header...)
			if got.body != c.want || got.err != nil {
				t.Errorf("%d %s, %v", got.status, got.body, got.err)
			}
			if to := engine.only(t).Header.Get(pd.HeaderModel); to != "" {
				t.Errorf("the engine got %s: %s", pd.HeaderModel, to)
			}
		})
	}
}

// A compressed answer keeps the engine's name, and the log says so.
func TestCompressedAnswersKeepTheirName(t *testing.T) {
	var log bytes.Buffer
	engine := startEngine(t, says(200, "application/json", "\x1f\x8bpacked", "Content-Encoding", "gzip"))
	s := startRig(t, engine.addr, func(_ *Config, to *Telemetry) { to.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	got := post(t, s.url+completionsPath, ask(false).body, pd.HeaderModel, renamed)
	s.busy.Wait()
	if got.body != "\x1f\x8bpacked" || got.header.Get("Content-Length") != "8" || !strings.Contains(log.String(), "keeps the engine's name") {
		t.Errorf("%q %v, log %s", got.body, got.header, log.String())
	}
}

func TestBadRenames(t *testing.T) {
	s := startRig(t, startEngine(t, says(200, "application/json", engineWhole)).addr)
	for _, header := range [][]string{{pd.HeaderModel, "llama"}, {pd.HeaderModel, renamed, pd.HeaderModel, renamed}} {
		post(t, s.url+completionsPath, ask(false).body, header...).mustRefuse(t, 400, pd.BadRequest)
	}
}

// The header of a sender without the pool's secret is ignored.
func TestRenamesNeedTheSecret(t *testing.T) {
	s := startRig(t, startEngine(t, says(200, "application/json", engineWhole)).addr, withSecrets(t, "sesame"))
	if got := post(t, s.url+completionsPath, ask(false).body, pd.HeaderModel, renamed); got.body != engineWhole {
		t.Errorf("a stranger: %d %s", got.status, got.body)
	}
	if got := post(t, s.url+completionsPath, ask(false).body, pd.HeaderModel, renamed, pd.HeaderAuth, "sesame"); got.body != clients(engineWhole) {
		t.Errorf("the picker: %d %s", got.status, got.body)
	}
}

// An answer that was redone locally is renamed too.
func TestNameIsGivenBackAfterAFallback(t *testing.T) {
	both(t, func(t *testing.T, q question) {
		answer, want := says(200, "application/json", engineWhole), clients(engineWhole)
		if q.stream {
			answer, want = streams(engineEvents), clients(engineEvents)
		}
		p := startEngine(t, says(500, "application/json", `{}`))
		s := startRig(t, startEngine(t, answer).addr)
		got := post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, p.addr, pd.HeaderModel, renamed)
		if got.body != want || got.decision(t).Reason != pd.PrefillFailed {
			t.Errorf("%d %s %s", got.status, got.header.Get(pd.HeaderDecision), got.body)
		}
	})
}
