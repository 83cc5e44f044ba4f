package extproc

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/stack/envoy"
)

// everything reports all counts of an answer under one namespace.
type everything struct{}

func (everything) Report(u body.Usage, set func(namespace, key string, value float64)) {
	set("envoy.lb", "prompt", float64(u.Prompt))
	set("envoy.lb", "cached", float64(u.Cached))
	set("envoy.lb", "completion", float64(u.Completion))
}

// silent reports nothing.
type silent struct{}

func (silent) Report(body.Usage, func(namespace, key string, value float64)) {}

// reportedTo makes a pool pick with reporters.
func (p *pool) reportedTo(all ...epp.Reporter) *pool {
	p.choose = func(r *epp.Request) (*epp.Decision, error) {
		d, err := p.local(r, p.endpoints...)
		d.AnswerPlugins = &epp.AnswerPlugins{Reporters: all}
		return d, err
	}
	return p
}

// reports lists what messages report, as "message: prompt/cached/completion".
func reports(answers []*procv3.ProcessingResponse) (all []string) {
	for _, a := range answers {
		if m := a.GetDynamicMetadata(); m != nil {
			kind, _, _ := strings.Cut(describe1(a), ` "`)
			in := m.GetFields()["envoy.lb"].GetStructValue().GetFields()
			all = append(all, fmt.Sprintf("%s: %v/%v/%v", kind, in["prompt"].GetNumberValue(), in["cached"].GetNumberValue(), in["completion"].GetNumberValue()))
		}
	}
	return all
}

// TestReports: the counts come from the sidecar or from the body, and are told once, with the message that makes them known.
func TestReports(t *testing.T) {
	const whole = `{"model":"m","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}`
	const events = "data: {\"choices\":[]}\n\ndata: {\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n"
	const messages = "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":5,\"cache_read_input_tokens\":4,\"output_tokens\":1}}}\n\n" +
		"event: message_delta\ndata: {\"usage\":{\"output_tokens\":3}}\n\n"
	asJSON, asEvents := []string{"content-type", "application/json"}, []string{"content-type", "text/event-stream"}
	told := append([]string{pd.HeaderOutcome, "done;prompt=8;cached=2;completion=1"}, asJSON...)
	for _, tc := range []struct {
		name             string
		headers          []string
		body             string
		trailers         []string // nil: the body ends the answer
		want             string
		noBody, silently bool
	}{
		{name: "a whole answer", headers: asJSON, body: whole, want: "response body: 9/4/3"},
		{name: "events", headers: asEvents, body: events, want: "response body: 9/-1/3"},
		{name: "events of messages", headers: asEvents, body: messages, want: "response body: 9/4/3"},
		{name: "with trailers", headers: asJSON, body: whole, trailers: []string{"x", "y"}, want: "response trailers: 9/4/3"},
		{name: "the sidecar's, in a header", headers: told, body: whole, want: "response headers: 8/2/1"},
		{name: "the sidecar's, in a trailer", headers: asEvents, body: events, trailers: []string{pd.HeaderOutcome, "done;prompt=8;completion=1"},
			want: "response trailers: 8/-1/1"},
		{name: "the sidecar's, in a trailer, without the body", headers: asEvents, trailers: []string{pd.HeaderOutcome, "done;prompt=8;completion=1"},
			want: "response trailers: 8/-1/1", noBody: true},
		{name: "no counts", headers: asJSON, body: `{"choices":[]}`},
		{name: "compressed", headers: append([]string{"content-encoding", "gzip"}, asJSON...), body: whole},
		{name: "no JSON", headers: asJSON, body: `{"usage":`},
		{name: "an event that is too large", headers: asEvents, body: "data: " + strings.Repeat("x", 2<<20)},
		{name: "nothing to report", headers: asJSON, body: whole, silently: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			reporter := epp.Reporter(everything{})
			if tc.silently {
				reporter = silent{}
			}
			r := startRig(t, newPool(a).reportedTo(reporter))
			s := r.open(t, client.MarkNone)
			if !tc.noBody {
				s.first = duplexBoth
			}
			s.send(chat(more), requestBody(ends, prompt))
			s.recv()
			s.recv()
			s.send(responseHeaders(more, tc.headers...))
			half := len(tc.body) / 2
			if tc.body != "" {
				s.send(responseBody(more, tc.body[:half]), responseBody(tc.trailers == nil, tc.body[half:]))
			}
			if tc.trailers != nil {
				s.send(responseTrailers(tc.trailers...))
			}
			answers, err := s.finish()
			if got := strings.Join(reports(answers), "|"); err != nil || got != tc.want {
				t.Errorf("reported %q, %v; want %q", got, err, tc.want)
			}
			if text, _ := bodyOf(answers); text != tc.body {
				t.Errorf("the body has %d bytes, want %d", len(text), len(tc.body))
			}
		})
	}
}

// TestReportsInTheAccessLog: Envoy has the numbers in its access log, in each layout of the filters.
func TestReportsInTheAccessLog(t *testing.T) {
	envoy.Require(t)
	for _, filters := range []envoyconf.Filters{envoyconf.FiltersSingle, envoyconf.FiltersPair} {
		for name, answer := range map[string]http.HandlerFunc{
			"whole": func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set(pd.HeaderOutcome, "done;prompt=9;cached=4;completion=3")
				_, _ = io.WriteString(w, "{}")
			},
			"stream": func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Trailer", pd.HeaderOutcome)
				_, _ = io.WriteString(w, "data: [DONE]\n\n")
				w.Header().Set(pd.HeaderOutcome, "done;prompt=9;cached=4;completion=3")
			},
		} {
			t.Run(string(filters)+" "+name, func(t *testing.T) {
				engine := httptest.NewServer(answer)
				t.Cleanup(engine.Close)
				addr := netip.MustParseAddrPort(engine.Listener.Addr().String())
				r := startRig(t, newPool(addr.String()).reportedTo(everything{}))
				file := filepath.Join(t.TempDir(), "access.log")
				e, gateway := startLoggingGateway(t, filters, r.conn.Target(), addr, file)
				resp := postChat(t, gateway, strings.NewReader(prompt))
				if _, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
					t.Fatalf("%d, %v\n%s", resp.StatusCode, err, e.Log())
				}
				if err := e.Stop(); err != nil { // it writes what it has not written yet
					t.Fatal(err)
				}
				logged, err := os.ReadFile(file)
				if want := "tokens 9 4 3\n"; err != nil || string(logged) != want {
					t.Errorf("the access log is %q, %v; want %q", logged, err, want)
				}
			})
		}
	}
}

// startLoggingGateway starts an Envoy that logs what was reported about each answer to a file. The caller stops it.
func startLoggingGateway(t *testing.T, filters envoyconf.Filters, picker string, endpoint netip.AddrPort, file string) (e *envoy.Envoy, address string) {
	t.Helper()
	o := envoyconf.Defaults()
	o.Listen, o.Admin, o.Pickers, o.AccessLog = "127.0.0.1:0", "127.0.0.1:0", []string{picker}, true
	o.Filters, o.Pool, o.Static, o.PickerTLS.Plaintext = filters, envoyconf.PoolStatic, []netip.AddrPort{endpoint}, true
	var boot bytes.Buffer
	if err := envoyconf.Bootstrap(&boot, o); err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(boot.String(), `"@type": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog`)
	_, after, more := strings.Cut(rest, "duration_ms: \"%DURATION%\"\n")
	if !found || !more {
		t.Fatal("the bootstrap has no access log where it was")
	}
	const logger = `"@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: %s
              log_format:
                text_format_source:
                  inline_string: "tokens %%DYNAMIC_METADATA(envoy.lb:prompt)%% %%DYNAMIC_METADATA(envoy.lb:cached)%% %%DYNAMIC_METADATA(envoy.lb:completion)%%\n"
`
	e, err := envoy.Start(within(t), []byte(before+fmt.Sprintf(logger, file)+after))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Stop() }) // unless the test has
	if address, err = e.Listener(within(t), envoyconf.ListenerName); err != nil {
		t.Fatal(err)
	}
	return e, address
}

// told keeps what stampers are told of answers.
type told chan time.Duration

func (c told) Stamp(a *epp.Answer, set func(name, value string)) {
	c <- a.TTFT
	set(pd.HeaderHeadroom, "0.25")
}

// TestFirstTokenIsTold: plugins learn the time to first token with the headers, if it has come by then, and their headers reach the client.
func TestFirstTokenIsTold(t *testing.T) {
	for timing, want := range map[string]time.Duration{"epp;dur=1, recv;dur=2": 0, "epp;dur=1, recv;dur=2, prefill;dur=80, first;dur=10": 93 * time.Millisecond} {
		answers := make(told, 1)
		p := newPool(a)
		p.choose = func(r *epp.Request) (*epp.Decision, error) {
			d, err := p.local(r, p.endpoints...)
			d.AnswerPlugins = &epp.AnswerPlugins{Stampers: []epp.Stamper{answers}}
			return d, err
		}
		s := startRig(t, p).open(t, "")
		s.decide()
		s.send(responseHeaders(more, pd.HeaderDecision, "local;reason=bypassed", pd.HeaderTiming, timing))
		if got := headersSet(t, s.recv())[pd.HeaderHeadroom]; got != "0.25" {
			t.Errorf("the client gets %q", got)
		}
		if got := <-answers; got != want {
			t.Errorf("%s: plugins are told %v, want %v", timing, got, want)
		}
		s.mustFinish()
	}
}
