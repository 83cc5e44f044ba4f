package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/stack/gateway"
)

// layouts are the two layouts, each with the marks of its streams.
var layouts = []struct {
	name   string
	change func(*gateway.Options)
	marks  []client.Mark
}{
	{"pair", nil, []client.Mark{client.MarkAcct, client.MarkPicker}},
	{"single", single, []client.Mark{client.MarkNone}},
}

// awaitEnds waits until the streams of one request have ended.
func awaitEnds(t *testing.T, p *picker, marks []client.Mark) {
	t.Helper()
	got := make([]client.Mark, len(marks))
	for i := range got {
		got[i] = <-p.ended
	}
	slices.Sort(got)
	if !slices.Equal(got, marks) {
		t.Errorf("streams %q ended, want %q", got, marks)
	}
}

func TestRequestGoesThroughThePicker(t *testing.T) {
	for _, layout := range layouts {
		t.Run(layout.name, func(t *testing.T) {
			var seen http.Header
			endpoint := startEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
				seen = r.Header.Clone()
				seen.Set("host", r.Host)
				echo("decode")(w, r)
			})
			p := startPicker(t, nil, endpoint)
			g := startGateway(t, layout.change, p.address)
			r := g.request(t, http.MethodPost, "/v1/completions?q=1", strings.NewReader(strings.Repeat("x", 200_000)))
			r.Host = "models.example"
			r.Header.Set("X-Tandem-Pd", "force")
			for _, name := range []string{"X-Tandem-Plan", "X-Tandem-Pd-Decision", "X-Prefiller-Host-Port", "X-Data-Parallel-Rank",
				"X-Gateway-Destination-Endpoint-Subset", "Keep-Alive"} {
				r.Header.Set(name, "forged")
			}
			if a := g.do(t, r); a.status != http.StatusOK || a.body != "decode 200000" {
				t.Errorf("answer %+v", a)
			}
			awaitEnds(t, p, layout.marks)

			mark := layout.marks[len(layout.marks)-1]
			asked := p.received(mark, client.RequestHeaders)[0].Header
			for _, want := range []struct{ name, value string }{
				{":method", "POST"}, {":path", "/v1/completions?q=1"}, {":authority", "models.example"}, {":scheme", "http"},
				{"content-length", "200000"}, {"x-tandem-pd", "force"}, {"x-forwarded-for", "127.0.0.1"}} {
				if got := append(asked[want.name], asked.Values(want.name)...); len(got) == 0 || got[0] != want.value {
					t.Errorf("the picker sees %s %q, want %q", want.name, got, want.value)
				}
			}
			for name, values := range seen {
				if slices.Contains(values, "forged") {
					t.Errorf("the endpoint got %s of the client", name)
				}
			}
			if seen.Get("host") != "models.example" || seen.Get("X-Request-Id") == "" ||
				seen.Get("X-Gateway-Destination-Endpoint") != endpoint {
				t.Errorf("the endpoint got %v", seen)
			}
			// HTTP/1 bodies end with an empty frame.
			if frames := p.received(mark, client.RequestBody); len(frames) < 2 || len(frames[len(frames)-1].Body) != 0 {
				t.Errorf("%d body frames, the last not empty", len(frames))
			}
			acct := p.received(layout.marks[0], client.ResponseHeaders)
			if len(acct) != 1 || acct[0].Served != endpoint {
				t.Errorf("got of the answer: %+v", acct)
			}
			if g.log.String() != "" {
				t.Errorf("logged: %s", g.log)
			}
		})
	}
}

func TestNoBody(t *testing.T) {
	p := startPicker(t, nil, startEndpoint(t, echo("decode")))
	g := startGateway(t, nil, p.address)
	if a := g.do(t, g.request(t, http.MethodGet, "/v1/models", nil)); a.body != "decode 0" {
		t.Errorf("answer %+v", a)
	}
	if frames := p.received(client.MarkPicker, client.RequestBody); len(frames) > 0 {
		t.Errorf("%d body frames for a request without one", len(frames))
	}
	if a := g.do(t, g.request(t, http.MethodHead, "/v1/models", nil)); a.status != http.StatusOK || a.header.Get("Content-Length") == "" {
		t.Errorf("answer to HEAD %+v", a)
	}
}

// refusing answers with 503, retriable or not.
func refusing(retry string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("X-Tandem-Retry", retry)
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// dying reads the request and then breaks the connection.
func dying(_ http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	panic(http.ErrAbortHandler)
}

func TestNextEndpoint(t *testing.T) {
	tests := []struct {
		name   string
		first  http.HandlerFunc // nil: no engine listens
		body   int
		status int
		served bool // by the second
	}{
		{"connection refused", nil, 1000, 200, true},
		{"dies with the request read", dying, 1000, 200, true},
		{"says that another may try", refusing("1"), 1000, 200, true},
		{"is full", refusing(""), 1000, 503, false},
		{"body that is not kept", refusing("1"), 3 << 20, 503, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			first := deadAddress(t)
			if test.first != nil {
				first = startEndpoint(t, test.first)
			}
			second := startEndpoint(t, echo("second"))
			p := startPicker(t, nil, first, second)
			g := startGateway(t, nil, p.address)
			a := g.post(t, strings.Repeat("x", test.body))
			want, served := "", first
			if test.served {
				want, served = fmt.Sprintf("second %d", test.body), second
			}
			if a.status != test.status || a.body != want {
				t.Errorf("answer %+v, want %d %q", a, test.status, want)
			}
			if got := p.received(client.MarkAcct, client.ResponseHeaders); len(got) != 1 || got[0].Served != served {
				t.Errorf("served by %+v, want %s", got, served)
			}
		})
	}
}

// Three endpoints of the picker's list fail, and the fourth serves.
func TestFourthEndpoint(t *testing.T) {
	p := startPicker(t, nil, deadAddress(t), startEndpoint(t, dying), startEndpoint(t, refusing("1")), startEndpoint(t, echo("fourth")))
	g := startGateway(t, nil, p.address)
	if a := g.post(t, "x"); a.status != http.StatusOK || a.body != "fourth 1" {
		t.Errorf("answer %+v", a)
	}
}

func TestNoEndpointAnswers(t *testing.T) {
	dead := deadAddress(t)
	fails := errors.New("out of ideas")
	tests := []struct {
		name      string
		script    func(client.Event) (*client.Reply, error)
		endpoints []string
	}{
		{"no endpoint alive", nil, []string{dead, dead, dead, dead}},
		{"no endpoint named", nil, nil},
		{"picker fails", func(e client.Event) (*client.Reply, error) { return nil, fails }, []string{dead}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := startPicker(t, test.script, test.endpoints...)
			g := startGateway(t, nil, p.address)
			a := g.post(t, "hello")
			if a.status != 503 || a.header.Get("Retry-After") != "1" || a.header.Get("Content-Type") != "application/json" ||
				!strings.Contains(a.body, `"code":"no-endpoint"`) {
				t.Errorf("answer %+v", a)
			}
			if !strings.Contains(g.log.String(), "refusing a request") {
				t.Errorf("the log does not say why: %s", g.log)
			}
		})
	}
	t.Run("no picker", func(t *testing.T) {
		g := startGateway(t, nil, dead)
		if a := g.post(t, "hello"); a.status != 503 {
			t.Errorf("answer %+v", a)
		}
	})
}

// on returns a script for one kind of frame of streams with a mark.
func on(mark client.Mark, kind client.Kind, act func() (*client.Reply, error)) func(client.Event) (*client.Reply, error) {
	return func(e client.Event) (*client.Reply, error) {
		if e.Mark == mark && e.Kind == kind {
			return act()
		}
		return nil, nil
	}
}

func TestPickerAnswersItself(t *testing.T) {
	reply := &client.Reply{Status: 429, Body: []byte(`{"error":{}}`),
		Header: http.Header{"Retry-After": {"7"}, "Content-Type": {"application/json"}}}
	replies := func() (*client.Reply, error) { return reply, nil }
	for name, kind := range map[string]client.Kind{"on the headers": client.RequestHeaders, "on the body": client.RequestBody} {
		t.Run(name, func(t *testing.T) {
			p := startPicker(t, on(client.MarkPicker, kind, replies), startEndpoint(t, echo("decode")))
			g := startGateway(t, nil, p.address)
			a := g.post(t, strings.Repeat("x", 100_000))
			if a.status != 429 || a.body != `{"error":{}}` || a.header.Get("Retry-After") != "7" {
				t.Errorf("answer %+v", a)
			}
		})
	}
	t.Run("while the client still sends", func(t *testing.T) {
		p := startPicker(t, on(client.MarkPicker, client.RequestHeaders, replies), deadAddress(t))
		g := startGateway(t, nil, p.address)
		more, client := io.Pipe()
		defer client.Close()
		if a := g.do(t, g.request(t, http.MethodPost, "/v1/completions", more)); a.status != 429 {
			t.Errorf("answer %+v", a)
		}
	})
	t.Run("to a client that sends all before it reads", func(t *testing.T) {
		p := startPicker(t, on(client.MarkPicker, client.RequestHeaders, replies), deadAddress(t))
		g := startGateway(t, nil, p.address)
		conn, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		const size = 100_000
		fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", size)
		in := bufio.NewReader(conn)
		if _, err := in.Peek(1); err != nil { // it is refused
			t.Fatal(err)
		}
		for range size / 1000 {
			if _, err := io.WriteString(conn, strings.Repeat("x", 1000)); err != nil {
				t.Fatal(err)
			}
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); resp.StatusCode != 429 || string(body) != `{"error":{}}` || err != nil {
			t.Errorf("%d %s, %v", resp.StatusCode, body, err)
		}
		if _, err := in.ReadByte(); err != io.EOF {
			t.Errorf("the connection does not end in good order: %v", err)
		}
	})
}

func TestAccountingMayFail(t *testing.T) {
	for name, kind := range map[string]client.Kind{
		"on the request": client.RequestHeaders, "on the answer": client.ResponseHeaders, "on the trailers": client.ResponseTrailers} {
		t.Run(name, func(t *testing.T) {
			endpoint := startEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
				io.WriteString(w, "whole")
				w.(http.Flusher).Flush() // else it gets a length, and no trailers
				w.Header().Set(http.TrailerPrefix+"X-Tandem-Outcome", "done")
			})
			fails := func() (*client.Reply, error) { return nil, errors.New("down") }
			p := startPicker(t, on(client.MarkAcct, kind, fails), endpoint)
			g := startGateway(t, nil, p.address)
			if a := g.post(t, "hello"); a.status != 200 || a.body != "whole" || a.trailer.Get("X-Tandem-Outcome") != "done" {
				t.Errorf("answer %+v", a)
			}
			if !strings.Contains(g.log.String(), "going on without the accounting stream") {
				t.Errorf("log: %s", g.log)
			}
		})
	}
}

func TestTrailers(t *testing.T) {
	for _, layout := range layouts {
		t.Run(layout.name, func(t *testing.T) {
			endpoint := startEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				io.WriteString(w, r.Trailer.Get("X-Sum"))
				w.(http.Flusher).Flush() // else it gets a length, and no trailers
				w.Header().Set(http.TrailerPrefix+"Server-Timing", "decode;dur=1")
			})
			p := startPicker(t, nil, endpoint)
			g := startGateway(t, layout.change, p.address)
			body := strings.NewReader("hello")
			r := g.request(t, http.MethodPost, "/v1/completions", io.NopCloser(body))
			r.Trailer = http.Header{"X-Sum": {"42"}}
			r.Header.Set("Te", "trailers")
			if a := g.do(t, r); a.body != "42" || a.trailer.Get("Server-Timing") != "decode;dur=1" {
				t.Errorf("answer %+v", a)
			}
			if got := p.received(layout.marks[0], client.ResponseTrailers); len(got) != 1 || got[0].Header.Get("Server-Timing") == "" {
				t.Errorf("got of the trailers: %+v", got)
			}
			awaitEnds(t, p, layout.marks)
		})
	}
}

func TestStreamIsNotHeldBack(t *testing.T) {
	next := make(chan string)
	endpoint := startEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		for text := range next {
			io.WriteString(w, text)
			w.(http.Flusher).Flush()
		}
	})
	p := startPicker(t, nil, endpoint)
	g := startGateway(t, nil, p.address)
	a, err := g.http.Do(g.request(t, http.MethodPost, "/v1/completions", strings.NewReader("{}"))) // returns on the head alone
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	buf := make([]byte, 16)
	for _, text := range []string{"one", "two", "three"} {
		next <- text
		if n, err := a.Body.Read(buf); err != nil || string(buf[:n]) != text {
			t.Fatalf("read %q, %v, want %q", buf[:n], err, text)
		}
	}
	close(next)
	if rest, err := io.ReadAll(a.Body); err != nil || len(rest) > 0 {
		t.Errorf("read %q, %v at the end", rest, err)
	}
}

func TestPickerDiesDuringTheAnswer(t *testing.T) {
	began, died := make(chan bool), make(chan bool)
	endpoint := startEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "first ")
		w.(http.Flusher).Flush()
		close(began)
		<-died
		io.WriteString(w, "last")
	})
	p := startPicker(t, nil, endpoint)
	g := startGateway(t, nil, p.address)
	go func() {
		<-began
		p.server.Stop()
		close(died)
	}()
	if a := g.post(t, "{}"); a.body != "first last" {
		t.Errorf("answer %+v", a)
	}
}

func TestAnswerIsCut(t *testing.T) {
	endpoint := startEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	p := startPicker(t, nil, endpoint)
	g := startGateway(t, nil, p.address)
	a, err := g.http.Do(g.request(t, http.MethodPost, "/v1/completions", strings.NewReader("{}")))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if body, err := io.ReadAll(a.Body); err == nil {
		t.Errorf("a cut answer %q looks whole", body)
	}
	awaitEnds(t, p, layouts[0].marks)
}

func TestClientLeaves(t *testing.T) {
	for _, layout := range layouts {
		t.Run(layout.name, func(t *testing.T) {
			here, gone := make(chan bool), make(chan bool)
			endpoint := startEndpoint(t, func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				close(here)
				<-r.Context().Done()
				close(gone)
			})
			p := startPicker(t, nil, endpoint)
			g := startGateway(t, layout.change, p.address)
			ctx, leave := context.WithCancel(t.Context())
			go func() {
				<-here
				leave()
			}()
			r := g.request(t, http.MethodPost, "/v1/completions", strings.NewReader("{}"))
			if a, err := g.http.Do(r.WithContext(ctx)); err == nil {
				a.Body.Close()
				t.Errorf("answer %v", a.Status)
			}
			<-gone
			awaitEnds(t, p, layout.marks)
		})
	}
	t.Run("while sending", func(t *testing.T) {
		here := make(chan bool)
		arrived := func() (*client.Reply, error) { close(here); return nil, nil }
		p := startPicker(t, on(client.MarkPicker, client.RequestBody, arrived), deadAddress(t))
		g := startGateway(t, nil, p.address)
		ctx, leave := context.WithCancel(t.Context())
		body, sender := io.Pipe()
		go func() {
			io.WriteString(sender, "some")
			<-here
			leave()
			sender.CloseWithError(ctx.Err()) // the client's transport waits for it
		}()
		if a, err := g.http.Do(g.request(t, http.MethodPost, "/v1/completions", body).WithContext(ctx)); err == nil {
			a.Body.Close()
			t.Errorf("answer %v", a.Status)
		}
		awaitEnds(t, p, []client.Mark{client.MarkPicker})
	})
}

func TestTwoPickers(t *testing.T) {
	endpoint := startEndpoint(t, echo("decode"))
	p := startPicker(t, nil, endpoint)
	g := startGateway(t, nil, deadAddress(t), p.address)
	for range 8 {
		if a := g.post(t, strings.Repeat("x", 100_000)); a.status != 200 {
			t.Errorf("answer %+v", a)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := gateway.New(gateway.Options{}); err == nil || !strings.Contains(err.Error(), "no address given") {
		t.Errorf("error %v", err)
	}
}
