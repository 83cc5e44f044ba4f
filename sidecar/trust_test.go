package sidecar

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim/madeup"
)

// Headers and trailers of an engine cannot pass for Tandem's, on any path.
func TestTrailersOfEngines(t *testing.T) {
	lies := []string{pd.HeaderDecision, pd.HeaderOutcome, pd.HeaderTiming, pd.HeaderRetry, "X-Tandem-Any"}
	engine := startEngine(t, func(w http.ResponseWriter, r *asked) {
		for _, name := range lies {
			w.Header().Set(name, "lie")
			w.Header().Set(http.TrailerPrefix+name, "lie")
		}
		w.Header().Set("X-Engine", "1")
		w.Header().Set("Trailer", "X-Announced")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, wholeAnswer)
		w.Header().Set("X-Announced", "1")
		w.Header().Set(http.TrailerPrefix+"X-Tail", "1")
	})
	s := startRig(t, engine.addr)
	for _, path := range []string{"/v1/models", "/tokenize", completionsPath} {
		t.Run(path, func(t *testing.T) {
			resp, err := open(t, within(t), http.MethodPost, s.url+path, strings.NewReader(ask(false).body), "TE", "trailers")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if _, err := io.ReadAll(resp.Body); err != nil {
				t.Fatal(err)
			}
			for _, name := range lies {
				for part, h := range map[string]http.Header{"header": resp.Header, "trailer": resp.Trailer} {
					if v := h.Values(name); len(v) > 0 && strings.Contains(strings.Join(v, ","), "lie") {
						t.Errorf("%s %s: %q", part, name, v)
					}
				}
			}
			if resp.Header.Get("X-Engine") != "1" || path != completionsPath && resp.Trailer.Get("X-Tail") != "1" {
				t.Errorf("the engine's own are missing: %v, trailers %v", resp.Header, resp.Trailer)
			}
		})
	}
}

// A client's trailers reach no engine under a name that only Tandem may write.
func TestTrailersOfClients(t *testing.T) {
	engine := startEngine(t, says(200, "application/json", "{}"))
	s := startRig(t, engine.addr)
	for _, path := range []string{"/tokenize", completionsPath} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"+
			"Trailer: X-Prefiller-Host-Port\r\n\r\n2\r\n{}\r\n0\r\nX-Prefiller-Host-Port: 10.0.0.1:80\r\nX-Tandem-Plan: x\r\n\r\n", path)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != 200 {
			t.Errorf("%s: %v, %v", path, resp, err)
		}
		conn.Close()
	}
	for _, got := range engine.requests() {
		if len(got.Trailer) > 0 || got.Header.Get("Trailer") != "" {
			t.Errorf("%s reached the engine with trailers %v", got.RequestURI, got.Trailer)
		}
	}
}

// meets answers as a prefill engine of madeup.Meeting, with status.
func meets(status int) act {
	return func(w http.ResponseWriter, r *asked) {
		_, number, _ := strings.Cut(r.body, `"meet_number":`)
		number, _, _ = strings.Cut(number, "}")
		says(status, "application/json", `{"met":`+number+`}`)(w, r)
	}
}

// meeting returns the acts of a prefill and a decode engine of madeup.Meeting. Neither answers its leg before both have theirs.
// Prefill answers with status; decode answers only if that is 200, and waits on otherwise.
func meeting(status int) (prefill, decode act) {
	prefillAsked, decodeAsked := make(chan struct{}), make(chan struct{})
	answers := says(200, "application/json", wholeAnswer)
	await := func(r *asked, other <-chan struct{}) {
		select {
		case <-other:
		case <-r.Context().Done():
		}
	}
	prefill = func(w http.ResponseWriter, r *asked) {
		if r.URL.Path != completionsPath {
			answers(w, r)
			return
		}
		close(prefillAsked)
		await(r, decodeAsked)
		meets(status)(w, r)
	}
	decode = func(w http.ResponseWriter, r *asked) {
		if strings.Contains(r.body, `"meet_pod"`) {
			close(decodeAsked)
			await(r, prefillAsked)
			if status != 200 {
				hangs(w, r)
				return
			}
		}
		answers(w, r)
	}
	return prefill, decode
}

// Headers that the dialect strips reach no engine, whatever way a call takes.
func TestStrippedHeaders(t *testing.T) {
	answers := says(200, "application/json", wholeAnswer)
	bothPrefill, bothDecode := meeting(200)
	failingPrefill, waitingDecode := meeting(500)
	for _, c := range []struct {
		name, method, path string
		prefill, decode    act
		remote             bool
		paths              string // that prefill and decode are asked for, sorted
	}{
		{"both legs", http.MethodPost, completionsPath, bothPrefill, bothDecode, true, "/v1/completions, /v1/completions"},
		{"legs aborted, then local", http.MethodPost, completionsPath, failingPrefill, waitingDecode, true,
			"/meeting/abort /meeting/abort /v1/completions, /meeting/abort /meeting/abort /v1/completions /v1/completions"},
		{"local", http.MethodPost, completionsPath, answers, answers, false, ", /v1/completions"},
		{"passed through, with a body", http.MethodPost, "/tokenize", answers, answers, false, ", /tokenize"},
		{"passed through", http.MethodGet, "/v1/models", answers, answers, false, ", /v1/models"},
	} {
		t.Run(c.name, func(t *testing.T) {
			prefill, decode := startEngine(t, c.prefill), startEngine(t, c.decode)
			s := startRig(t, decode.addr, speaks(madeup.Meeting{}))
			header := []string{"X-Meet-Number", "1", "x-meet-pod", "evil:1", "X-Mine", "1"}
			if c.remote {
				header = append(header, pd.HeaderPrefill, prefill.addr)
			}
			resp, err := open(t, within(t), c.method, s.url+c.path, strings.NewReader(`{"prompt":"a"}`), header...)
			if err != nil {
				t.Fatal(err)
			}
			if resp.Body.Close(); resp.StatusCode != 200 {
				t.Errorf("status %d", resp.StatusCode)
			}
			s.end()
			var paths [2][]string
			for i, e := range []*fakeEngine{prefill, decode} {
				for _, got := range e.requests() {
					paths[i] = append(paths[i], got.URL.Path)
					if got.Header.Get("X-Mine") != "1" {
						t.Errorf("%s reached an engine without the client's other headers: %v", got.URL.Path, got.Header)
					}
					for name := range got.Header {
						if strings.HasPrefix(name, "X-Meet-") {
							t.Errorf("%s reached an engine with the client's %s", got.URL.Path, name)
						}
					}
				}
				slices.Sort(paths[i])
			}
			if got := strings.Join(paths[0], " ") + ", " + strings.Join(paths[1], " "); got != c.paths {
				t.Errorf("the engines were asked for %s, want %s", got, c.paths)
			}
		})
	}
}

// Only an upgrade to WebSocket passes unread: in HTTP/2, for example, a client could send any header.
func TestOtherUpgradesDoNotPass(t *testing.T) {
	engine := startEngine(t, says(200, "text/plain", "no"))
	s := startRig(t, engine.addr)
	for _, protocol := range []string{"h2c", "websocket, h2c", "TLS/1.3", "connect-ip"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\nHTTP2-Settings: AA\r\n\r\n", protocol)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != 200 {
			t.Errorf("%s: %v, %v", protocol, resp, err)
		}
		conn.Close()
	}
	for _, got := range engine.requests() {
		if got.Header.Get("Upgrade") != "" || got.Header.Get("Http2-Settings") != "" {
			t.Errorf("the engine was asked to upgrade: %v", got.Header)
		}
	}
}

// A compressed body, or one of two types at once, does not bypass the guard.
func TestDisguisedBodies(t *testing.T) {
	engine := startEngine(t, ask(false).answer())
	s := startRig(t, engine.addr)
	const forged = `{"prompt":"a","kv_transfer_params":{"remote_host":"forged"}}`
	cases := []struct {
		name   string
		header http.Header
		status int
	}{
		{"compressed", http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}}, 400},
		{"compressed twice", http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"identity", "br"}}, 400},
		{"said not to be", http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"identity"}}, 200},
		{"an upload too", http.Header{"Content-Type": {"application/octet-stream", "application/json"}}, 200},
		{"of no kind", http.Header{}, 200},
		{"of an odd kind", http.Header{"Content-Type": {"audio/"}}, 200},
	}
	for _, path := range []string{completionsPath, "/invocations"} {
		for _, c := range cases {
			t.Run(path+" "+c.name, func(t *testing.T) {
				req, err := http.NewRequestWithContext(within(t), http.MethodPost, s.url+path, strings.NewReader(forged))
				if err != nil {
					t.Fatal(err)
				}
				req.Header = c.header.Clone()
				resp, err := newClient(t).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != c.status {
					t.Errorf("status %d, want %d", resp.StatusCode, c.status)
				}
			})
		}
	}
	for _, got := range engine.requests() {
		if strings.Contains(got.body, "forged") {
			t.Errorf("%s: the engine got %s", got.RequestURI, got.body)
		}
	}
}
