package sidecar

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/sidecar/relay"
)

// ways are the local and the remote way to the engine, as the headers of a request for a given prefill engine.
var ways = map[string]func(prefill *fakeEngine) []string{
	"remote": func(p *fakeEngine) []string { return []string{pd.HeaderPrefill, p.addr} },
	"local":  func(*fakeEngine) []string { return nil },
}

// trailing lists the phases that a stream's headers could not report yet.
var trailing = map[string]string{"remote": "decode", "local": "first decode"}

// serve starts a pair and a sidecar, and gives the headers for a way.
func serve(t *testing.T, way func(*fakeEngine) []string, params string, decode act, options ...option) (*rig, []string) {
	t.Helper()
	p := startEngine(t, offering(params))
	return startRig(t, startEngine(t, decode).addr, options...), way(p)
}

// readEvent reads one event of a stream that goes on.
func readEvent(t *testing.T, from io.Reader) string {
	t.Helper()
	var b []byte
	for !bytes.HasSuffix(b, []byte("\n\n")) {
		var one [1]byte
		if _, err := io.ReadFull(from, one[:]); err != nil {
			t.Fatalf("after %q: %v", b, err)
		}
		b = append(b, one[0])
	}
	return string(b)
}

func TestEventsAreRelayedAsTheyCome(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			s, header := serve(t, way, handoffParams, then(streams(firstEvent), g.act, streams(secondEvent, doneEvent)))
			resp := mustOpen(t, s.url+completionsPath, ask(true).body, header...)
			if got := readEvent(t, resp.Body); got != firstEvent {
				t.Errorf("first event %q", got)
			}
			if got, want := phasesOf(t, resp.Header.Get(pd.HeaderTiming)), map[string]string{"remote": "recv prefill handoff first", "local": "recv"}[name]; got != want {
				t.Errorf("phases %s, want %s", got, want)
			}
			close(g.opened)
			rest, err := io.ReadAll(resp.Body)
			if err != nil || string(rest) != secondEvent+doneEvent {
				t.Errorf("rest %q, %v", rest, err)
			}
		})
	}
}

// A local stream's headers do not wait for an event: it is never redone.
func TestLocalHeadersComeFirst(t *testing.T) {
	g := newGate()
	s, _ := serve(t, ways["local"], handoffParams, then(streams(), g.act, streams(firstEvent, doneEvent)))
	resp := mustOpen(t, s.url+completionsPath, ask(true).body)
	if resp.StatusCode != 200 || resp.Header.Get(pd.HeaderDecision) != "local;reason=unplanned" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	close(g.opened)
	if got := readEvent(t, resp.Body); got != firstEvent {
		t.Errorf("first event %q", got)
	}
}

// The bytes of a stream pass unchanged, wherever the engine's chunks cut its events, and however its lines end.
func TestEventsCutAnywhere(t *testing.T) {
	for name, way := range ways {
		for ends, text := range map[string]string{"lf": wholeStream, "crlf": ": hi\r\n\r\n" + strings.ReplaceAll(wholeStream, "\n", "\r\n"), "cr": strings.ReplaceAll(wholeStream, "\n", "\r")} {
			t.Run(name+"/"+ends, func(t *testing.T) {
				var at atomic.Int64
				s, header := serve(t, way, handoffParams, func(w http.ResponseWriter, r *asked) {
					i := at.Add(1) - 1
					streams(text[:i], text[i:])(w, r)
				}, set(func(c *Config) { c.Fallback.Burst = 0 }))
				for range len(text) {
					got := post(t, s.url+completionsPath, ask(true).body, header...)
					if got.body != text || got.err != nil || got.status != 200 {
						t.Fatalf("cut at %d: %d %q, %v", at.Load()-1, got.status, got.body, got.err)
					}
				}
			})
		}
	}
}

// lastError finds the error in the last event of a stream, in the shape of the API.
func lastError(t *testing.T, api pd.API, stream string) (kind, message string) {
	t.Helper()
	var last body.Event
	var events body.Events
	var data, name []byte
	if err := events.Feed([]byte(stream), func(e body.Event) error {
		if !e.Done() {
			last = e
			data, name = bytes.Clone(e.Data), bytes.Clone(e.Name)
		}
		return nil
	}); err != nil || !events.Boundary() || !last.Error() && string(name) != "error" {
		t.Fatalf("%q does not end with a whole error event (%v)", stream, err)
	}
	var e struct {
		Type, Code, Message string
		Error               struct{ Type, Code, Message string }
	}
	if err := json.Unmarshal(data, &e); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	if strings.HasSuffix(stream, doneEvent) == (api == pd.APIMessages || api == pd.APIResponses) {
		t.Errorf("%s ends with %q", api, stream)
	}
	switch api {
	case pd.APIMessages:
		return e.Error.Type, e.Error.Message
	case pd.APIResponses:
		return e.Code, e.Message
	}
	return e.Error.Code, e.Error.Message
}

// If an engine breaks off, the client gets whole events, an error in its API's shape, and the end of the stream.
func TestStreamBreaksOff(t *testing.T) {
	breakers := map[string]act{
		"mid-event":   then(streams(firstEvent, secondEvent[:11]), resets),
		"after event": then(streams(firstEvent), resets),
		"by its end":  then(streams(firstEvent, secondEvent[:11]), closes),
	}
	for name, act := range breakers {
		for api := range questionsOf {
			t.Run(name+"/"+api.String(), func(t *testing.T) {
				s, header := serve(t, ways["remote"], handoffParams, act)
				got := post(t, s.url+api.Path(), askIn(api, true), append(header, "TE", "trailers")...)
				if got.status != 200 || got.err != nil || !strings.HasPrefix(got.body, firstEvent) {
					t.Fatalf("%d %q, %v", got.status, got.body, got.err)
				}
				if strings.Count(got.body, "lo") != 0 || strings.Count(got.body, "\n\n") != strings.Count(got.body, "data: ") {
					t.Errorf("half an event went through: %q", got.body)
				}
				kind, message := lastError(t, api, got.body)
				if kind == "" || !strings.Contains(message, "broke off") {
					t.Errorf("error %s %s", kind, message)
				}
				if outcome := got.trailer.Get(pd.HeaderOutcome); outcome != "error" {
					t.Errorf("outcome %s", outcome)
				}
				if phasesOf(t, got.trailer.Get(pd.HeaderTiming)) != trailing["remote"] {
					t.Errorf("trailers %v", got.trailer)
				}
			})
		}
	}
}

func TestStreamWithoutDone(t *testing.T) {
	cases := []struct {
		api     pd.API
		outcome string
	}{{pd.APIChat, "error"}, {pd.APICompletions, "error"}, {pd.APIMessages, "error"}, {pd.APIResponses, "error"}, {pd.APIGenerate, "error"}, {pd.APIEmbeddings, "done"}}
	for _, c := range cases {
		t.Run(c.api.String(), func(t *testing.T) {
			s, _ := serve(t, ways["local"], handoffParams, streams(firstEvent))
			got := post(t, s.url+c.api.Path(), "{}", "TE", "trailers")
			if outcome := got.trailer.Get(pd.HeaderOutcome); outcome != c.outcome || got.err != nil {
				t.Errorf("outcome %s, %v", outcome, got.err)
			}
			if (got.body == firstEvent) != (c.outcome == "done") {
				t.Errorf("body %q", got.body)
			}
		})
	}
}

const usageEvent = `data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":39}}}` + "\n\n"

func TestReport(t *testing.T) {
	const reportPlan = remotePlan + ";report"
	full := streams(firstEvent, secondEvent, usageEvent, doneEvent)
	cases := []struct {
		name    string
		header  []string
		act     act
		outcome string // of the trailer, "" for none
	}{
		{"not asked for", nil, full, ""},
		{"the client takes trailers", []string{"TE", "trailers"}, full, "done;prompt=40;cached=39;completion=2"},
		{"among others", []string{"TE", "gzip;q=0.5, trailers"}, full, "done;prompt=40;cached=39;completion=2"},
		{"the picker asks", []string{pd.HeaderPlan, reportPlan}, full, "done;prompt=40;cached=39;completion=2"},
		{"no usage", []string{"TE", "trailers"}, streams(firstEvent, doneEvent), "done"},
		{"an error in the stream", []string{"TE", "trailers"}, streams(firstEvent, errorEvent, doneEvent), "error"},
		{"an error ends the stream", []string{"TE", "trailers"}, streams(firstEvent, errorEvent), "error"},
		{"broken off after its end", []string{"TE", "trailers"}, then(full, resets), "done;prompt=40;cached=39;completion=2"},
	}
	for _, c := range cases {
		for name, way := range ways {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				s, header := serve(t, way, handoffParams, c.act)
				header = append(header, c.header...)
				if name == "local" {
					header = slices.Clone(header)
					for i := range header {
						header[i] = strings.Replace(header[i], "remote;id="+planID+";reason=uncached", "local;id="+planID+";reason=short-prompt", 1)
					}
				}
				got := post(t, s.url+completionsPath, ask(true).body, header...)
				if got.status != 200 || got.err != nil {
					t.Errorf("%d, %v", got.status, got.err)
				}
				if outcome := got.trailer.Get(pd.HeaderOutcome); outcome != c.outcome {
					t.Errorf("outcome %q, want %q", outcome, c.outcome)
				}
				want := ""
				if c.outcome != "" {
					want = trailing[name]
				}
				if phases := phasesOf(t, got.trailer.Get(pd.HeaderTiming)); phases != want {
					t.Errorf("trailers %v", got.trailer)
				}
			})
		}
	}
}

// A whole answer's report is a header, so it is read to its end first.
func TestWholeReport(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			s, header := serve(t, way, handoffParams, ask(false).answer())
			got := post(t, s.url+completionsPath, ask(false).body, append(header, "TE", "trailers")...)
			if outcome := got.header.Get(pd.HeaderOutcome); outcome != "done;prompt=40;completion=1" || got.body != wholeAnswer {
				t.Errorf("outcome %s, %s", outcome, got.body)
			}
			if !strings.HasSuffix(got.phases(t), "decode") {
				t.Errorf("phases %s", got.phases(t))
			}
			if got := post(t, s.url+completionsPath, ask(false).body, header...); got.header.Get(pd.HeaderOutcome) != "" {
				t.Error("a report that was not asked for")
			}
		})
	}
}

// If prefill's engine does not hand its count of cached tokens over, decode reports all pulled tokens as cached.
func TestUsageIsCorrected(t *testing.T) {
	whole := func(cached string, padding int) string {
		return `{"x":"` + strings.Repeat("y", padding) + `","usage":{"prompt_tokens":40,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens": ` + cached + ` }}}`
	}
	event := strings.Replace(usageEvent, `"cached_tokens":39`, `"cached_tokens":8`, 1)
	cases := []struct {
		name, params string
		act          act
		stream       bool
		want         string
		outcome      string
	}{
		{"older, small", oldHandoff, says(200, "application/json", whole("39", 10)), false, whole("8", 10), "cached=8"},
		{"older, large", oldHandoff, says(200, "application/json", whole("39", 100<<10)), false, whole("8", 100<<10), "cached=8"},
		{"older, chunked", oldHandoff, chunked(200, "application/json", whole("39", 100<<10)), false, whole("8", 100<<10), "cached=8"},
		{"older, without the count", oldHandoff, says(200, "application/json", wholeAnswer), false, wholeAnswer, "cached=8"},
		{"older, null", oldHandoff, says(200, "application/json", whole("null", 0)), false, whole("null", 0), "cached=8"},
		{"older, stream", oldHandoff, streams(firstEvent, usageEvent, doneEvent), true, firstEvent + event + doneEvent, "cached=8"},
		{"older, stream with a length", oldHandoff, says(200, "text/event-stream", firstEvent+usageEvent+doneEvent), true, firstEvent + event + doneEvent, "cached=8"},
		{"newer, small", handoffParams, says(200, "application/json", whole("39", 10)), false, whole("39", 10), "cached=39"},
		{"newer, large", handoffParams, says(200, "application/json", whole("39", 100<<10)), false, whole("39", 100<<10), "cached=39"},
		{"newer, stream", handoffParams, streams(firstEvent, usageEvent, doneEvent), true, firstEvent + usageEvent + doneEvent, "cached=39"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, header := serve(t, ways["remote"], c.params, c.act)
			for _, te := range []string{"", "trailers"} {
				got := post(t, s.url+completionsPath, ask(c.stream).body, append(header, "TE", te)...)
				got.mustBe(t, 200, servedRemote)
				if got.body != c.want || got.err != nil {
					t.Errorf("%d bytes ending in %q, %v; want %d ending in %q", len(got.body), tail(got.body), got.err, len(c.want), tail(c.want))
				}
				if n := got.header.Get("Content-Length"); n != "" && n != strconv.Itoa(len(got.body)) {
					t.Errorf("Content-Length %s of %d bytes", n, len(got.body))
				}
				if outcome := got.header.Get(pd.HeaderOutcome) + got.trailer.Get(pd.HeaderOutcome); te != "" && !strings.Contains(outcome, c.outcome) {
					t.Errorf("outcome %q", outcome)
				}
			}
		})
	}
	t.Run("redone locally", func(t *testing.T) {
		prefill, decode := startEngine(t, offering(oldHandoff)), startEngine(t, says(500, "text/plain", ""), says(200, "application/json", whole("3", 0)))
		s := startRig(t, decode.addr)
		if got := post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, prefill.addr); got.body != whole("3", 0) {
			t.Errorf("decode's own count was touched: %s", got.body)
		}
	})
}

func tail(s string) string { return s[max(0, len(s)-120):] }

// An answer that is too long to be buffered passes uncorrected but complete.
func TestHugeWholeAnswer(t *testing.T) {
	huge := `{"x":"` + strings.Repeat("y", relay.MaxBuffered) + `"}`
	for name, act := range map[string]act{"announced": says(200, "application/json", huge), "chunked": chunked(200, "application/json", huge)} {
		t.Run(name, func(t *testing.T) {
			s, header := serve(t, ways["remote"], oldHandoff, act)
			got := post(t, s.url+completionsPath, ask(false).body, header...)
			if got.status != 200 || got.body != huge || got.err != nil {
				t.Errorf("%d, %d bytes, %v", got.status, len(got.body), got.err)
			}
		})
	}
}

// The engine's own trailers pass; those only Tandem may write do not.
func TestEngineTrailers(t *testing.T) {
	engine := func(w http.ResponseWriter, r *asked) {
		w.Header().Set("Trailer", "X-Engine")
		streams(firstEvent, doneEvent)(w, r)
		w.Header().Set("X-Engine", "1")
		w.Header().Set(http.TrailerPrefix+"Server-Timing", "e;dur=1")
		w.Header().Set(http.TrailerPrefix+"X-Tandem-Outcome", "aborted")
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			s, header := serve(t, way, handoffParams, engine)
			got := post(t, s.url+completionsPath, ask(true).body, header...)
			if got.trailer.Get("X-Engine") != "1" || got.trailer.Get("Server-Timing") != "" || got.trailer.Get(pd.HeaderOutcome) != "" {
				t.Errorf("trailers %v", got.trailer)
			}
		})
	}
}

// A compressed stream passes unread, and no error is written into it.
func TestCompressedStream(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	fmt.Fprint(z, wholeStream)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			s, header := serve(t, way, oldHandoff, func(w http.ResponseWriter, r *asked) {
				w.Header().Set("Content-Encoding", "gzip")
				streams(packed.String()[:9], packed.String()[9:])(w, r)
			})
			got := post(t, s.url+completionsPath, ask(true).body, append(header, "Accept-Encoding", "gzip", "TE", "trailers")...)
			if got.status != 200 || got.body != packed.String() || got.err != nil {
				t.Errorf("%d %q, %v", got.status, got.body, got.err)
			}
		})
	}
}

// An event larger than any engine's ends the stream with an error, and the report says so.
func TestTooLargeEvent(t *testing.T) {
	s, _ := serve(t, ways["local"], handoffParams, streams(firstEvent, "data: "+strings.Repeat("x", relay.MaxEvent)))
	got := post(t, s.url+completionsPath, ask(true).body, "TE", "trailers")
	if !strings.HasPrefix(got.body, firstEvent) || got.err != nil {
		t.Errorf("%q, %v", tail(got.body), got.err)
	}
	if _, message := lastError(t, pd.APICompletions, got.body); !strings.Contains(message, "too large") {
		t.Errorf("error %s", message)
	}
	if got := got.trailer.Get(pd.HeaderOutcome); got != "error" {
		t.Errorf("outcome %q", got)
	}
}

// A client that does not read slows only its own engine request down; when it leaves, the engine notices.
func TestSlowReader(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			wrote := make(chan int, 1)
			s, header := serve(t, way, handoffParams, endless(wrote))
			resp := mustOpen(t, s.url+completionsPath, ask(true).body, header...)
			readEvent(t, resp.Body)
			resp.Body.Close()
			if n := wait(t, wrote, "the engine to notice"); n >= endlessBytes {
				t.Errorf("the engine wrote %d bytes to a client that read one event", n)
			}
		})
	}
}

// endlessBytes is far more than the buffers between an engine and a client.
const endlessBytes = 256 << 20

// endless streams events until the caller takes no more, and tells how many bytes those were.
func endless(wrote chan<- int) act {
	return func(w http.ResponseWriter, r *asked) {
		streams(firstEvent)(w, r)
		event := "data: " + strings.Repeat("x", 64<<10) + "\n\n"
		n := 0
		for err := error(nil); err == nil && n < endlessBytes; n += len(event) {
			_, err = io.WriteString(w, event)
		}
		wrote <- n
	}
}

// A client that stays and does not read loses its answer, over either protocol, and the engine is told.
func TestClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	for name, way := range ways {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(name+" "+protocol, func(t *testing.T) {
				t.Parallel()
				wrote := make(chan int, 1)
				s, header := serve(t, way, handoffParams, endless(wrote), set(func(c *Config) { c.Trust.AnswerPause = shortPause }))
				front := httptest.NewUnstartedServer(s)
				front.Config.Protocols = new(http.Protocols)
				front.Config.Protocols.SetHTTP1(true)
				front.Config.Protocols.SetUnencryptedHTTP2(true)
				front.Start()
				defer front.Close()
				client := &http.Transport{Protocols: new(http.Protocols)}
				client.Protocols.SetHTTP1(protocol == "HTTP/1.1")
				client.Protocols.SetUnencryptedHTTP2(protocol == "HTTP/2.0")
				defer client.CloseIdleConnections()
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front.URL+completionsPath, strings.NewReader(ask(true).body))
				if err != nil {
					t.Fatal(err)
				}
				for i := 0; i < len(header); i += 2 {
					req.Header.Set(header[i], header[i+1])
				}
				resp, err := client.RoundTrip(req)
				if err != nil || resp.Proto != protocol {
					t.Fatal(resp, err)
				}
				defer resp.Body.Close()
				if n := wait(t, wrote, "the engine to notice"); n >= endlessBytes {
					t.Errorf("the engine wrote %d bytes to a client that read nothing", n)
				}
			})
		}
	}
}

// The deadline of one answer is not that of the next one on the same connection.
func TestAnswersAfterAPause(t *testing.T) {
	s, header := serve(t, ways["local"], handoffParams, ask(true).answer(), set(func(c *Config) { c.Trust.AnswerPause = shortPause }))
	post(t, s.url+completionsPath, ask(true).body, header...).mustBe(t, 200, "local;reason=unplanned")
	<-time.After(3 * shortPause / 2)
	post(t, s.url+completionsPath, ask(true).body, header...).mustBe(t, 200, "local;reason=unplanned")
}
