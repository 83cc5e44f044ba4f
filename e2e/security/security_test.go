package security

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// The tests of this file and its neighbours play those whom docs/security.md names, against real programs from outside. The page
// and the tests name each other: TestThreatsPage.

// TestThreatsPage holds that each test the page names is there, and each security test of this package is on the page.
func TestThreatsPage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(harness.Root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, name := range regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(page), -1) {
		named[name[1]] = true
	}
	there := map[string]string{}
	err = filepath.WalkDir(harness.Root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, name := range regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(t \*testing\.T\)`).FindAllSubmatch(source, -1) {
			there[string(name[1])] = filepath.Base(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if there[name] == "" {
			t.Errorf("docs/security.md names %s, and there is no such test", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(there)) {
		if strings.HasPrefix(name, "TestSecurity") && !named[name] {
			t.Errorf("docs/security.md does not name %s of %s", name, there[name])
		}
	}
	rows, attempts := 0, false
	for line := range strings.SplitSeq(string(page), "\n") {
		switch {
		case strings.HasPrefix(line, "| Attempt "):
			attempts = true // in the table of attempts
		case !strings.HasPrefix(line, "|"):
			attempts = false
		case attempts && strings.HasPrefix(line, "| "):
			if rows++; !strings.Contains(line, "`Test") {
				t.Errorf("no test tries %q", line)
			}
		}
	}
	if rows < 20 {
		t.Errorf("only %d rows were read of docs/security.md", rows)
	}
}

// mark is in every value that an attacker forges.
const mark = "forged-by-a-client"

// decoy is a server to which forged requests point. No program of ours may connect to it.
type decoy struct {
	addr        string
	connections atomic.Int64
}

func startDecoy(t *testing.T) *decoy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &decoy{addr: l.Addr().String()}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.connections.Add(1)
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-ended })
	return s
}

func (s *decoy) port() string { return s.addr[strings.LastIndex(s.addr, ":")+1:] }

// mustHaveNoConnection fails if a program has connected to the decoy.
func (s *decoy) mustHaveNoConnection(t *testing.T) {
	t.Helper()
	if n := s.connections.Load(); n != 0 {
		t.Errorf("%d connections were made to an address that only forged requests name", n)
	}
}

// rawRequest is a request that is sent byte for byte, without the corrections of net/http.
type rawRequest struct {
	method, uri string
	header      [][2]string
	body        string
}

// send writes the request and reads the answer, with its body read already.
func (q rawRequest) send(ctx context.Context, addr string) (*http.Response, string, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: tandem.invalid\r\nConnection: close\r\n", q.method, q.uri)
	for _, h := range q.header {
		fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
	}
	fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(q.body), q.body)
	if _, err := conn.Write(b.Bytes()); err != nil {
		return nil, "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: q.method})
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp, string(text), err
}

func (q rawRequest) mustSend(t *testing.T, addr string) (*http.Response, string) {
	t.Helper()
	resp, text, err := q.send(harness.Within(t), addr)
	if err != nil {
		t.Fatalf("%s %s: %v", q.method, q.uri, err)
	}
	return resp, text
}

// requestsOf returns every request that the tap has seen.
func requestsOf(p *harness.Tap) (seen []harness.Tapped) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	for _, requests := range p.Kept {
		seen = append(seen, requests...)
	}
	return seen
}

// taps returns the taps before all engines.
func taps(f *harness.TappedFleet) (taps []*harness.Tap) {
	for _, e := range append(slices.Clone(f.Prefill), f.Decode...) {
		taps = append(taps, e.Tap)
	}
	return taps
}

// mustHaveNothingForged fails if an engine got a header that only Tandem's programs exchange, or a forged value.
func mustHaveNothingForged(t *testing.T, p *harness.Tap, madeUp ...string) {
	t.Helper()
	for _, r := range requestsOf(p) {
		for name, values := range r.Header {
			if pd.Internal(name) || strings.Contains(strings.ToLower(name), "model-name-rewrite") {
				t.Errorf("an engine got %s: %q", name, values)
			}
			for _, v := range append(madeUp, mark) {
				if strings.Contains(strings.Join(values, "\n"), v) {
					t.Errorf("an engine got %s: %q", name, values)
				}
			}
		}
		if strings.Contains(r.Body, mark) {
			t.Errorf("an engine got the body %.300s", r.Body)
		}
	}
}
