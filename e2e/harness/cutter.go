package harness

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
)

// Cutter stands before an engine and breaks each stream off after some events, as the end of the engine does.
type Cutter struct {
	Addr  string
	After atomic.Int64
	Whole atomic.Bool // it breaks off other answers too, after their first bytes
}

// NewCutter makes the Cutter of an engine at an address, until the test ends.
func NewCutter(t *testing.T, engine string) *Cutter {
	t.Helper()
	c := &Cutter{}
	to := &url.URL{Scheme: "http", Host: engine}
	front := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ModifyResponse: func(resp *http.Response) error {
			switch {
			case strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream"):
				resp.Body = &cutBody{ReadCloser: resp.Body, left: int(c.After.Load())}
			case c.Whole.Load() && resp.Request.Method == http.MethodPost:
				resp.Body = cutWhole{io.MultiReader(io.LimitReader(resp.Body, 10), iotest.ErrReader(errCut)), resp.Body}
			}
			return nil
		}})
	t.Cleanup(front.Close)
	c.Addr = strings.TrimPrefix(front.URL, "http://")
	return c
}

// cutWhole is the beginning of an answer.
type cutWhole struct {
	io.Reader
	io.Closer
}

// cutBody is a stream that ends after some events.
type cutBody struct {
	io.ReadCloser
	left int
}

var errCut = errors.New("the stream was broken off")

// Read implements io.Reader. vLLM sends each event in one chunk, so that no read ends within the blank line.
func (b *cutBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errCut
	}
	n, err := b.ReadCloser.Read(p)
	end := 0
	for b.left > 0 {
		at := bytes.Index(p[end:n], []byte("\n\n"))
		if at < 0 {
			return n, err
		}
		end += at + 2
		b.left--
	}
	return end, nil
}
