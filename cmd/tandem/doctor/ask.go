package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
)

// answer is an HTTP response with its whole body.
type answer struct {
	status int
	header http.Header
	body   []byte
	skew   skew
}

// pageLimit is the most that is read of a response body, in bytes.
const pageLimit = 8 << 20

// asker sends HTTP requests to one kind of server. There is one for each kind, so that neither the engines' API key nor the
// cluster's credentials reach another server.
type asker struct {
	client *http.Client
	key    string // bearer token; "": none
}

// engines returns the asker for endpoints. It sends no key through the API server's proxy, which would take it for its own.
func (f *fleet) engines() asker {
	if !f.reach.dials() {
		return asker{client: f.reach.client()}
	}
	return asker{f.reach.client(), f.key}
}

// operator returns the asker for a picker: a pod of the cluster, or the one that flags name.
func (f *fleet) operator(p *picker) asker {
	if p.pod != nil {
		return asker{client: f.reach.client()}
	}
	return asker{client: f.direct.http}
}

// user returns the asker that sends requests through the proxy as a user's client does.
func (f *fleet) user() asker { return asker{f.direct.http, f.key} }

// ask sends a request and reads the response. If the server closes the connection while the request goes out, it sends the
// request again; a repeated request does no harm.
func (a asker) ask(ctx context.Context, method, url string, header http.Header, body string) (*answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if a.key != "" {
		req.Header.Set("Authorization", "Bearer "+a.key)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	req.Header["Idempotency-Key"] = nil // makes net/http retry; with a nil value it sends no such header
	watch := startSkew()
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, cause(err)
	}
	defer resp.Body.Close()
	got := &answer{status: resp.StatusCode, header: resp.Header, skew: watch.read(resp.Header.Get("Date"))}
	if got.body, err = io.ReadAll(io.LimitReader(resp.Body, pageLimit)); err != nil {
		return nil, cause(err)
	}
	return got, nil
}

// get reads a page; any status but 200 is an error.
func (a asker) get(ctx context.Context, url string) (*answer, error) {
	got, err := a.ask(ctx, http.MethodGet, url, nil, "")
	if err == nil && got.status != http.StatusOK {
		return nil, statusError(got.status)
	}
	return got, err
}

func (a asker) getJSON(ctx context.Context, url string, to any) error {
	got, err := a.get(ctx, url)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(got.body, to); err != nil {
		return errors.New("its answer is not JSON")
	}
	return nil
}

// metrics reads the metrics page of a server.
func (a asker) metrics(ctx context.Context, base string) (promtext.Page, error) {
	got, err := a.get(ctx, base+"/metrics")
	if err != nil {
		return nil, err
	}
	return promtext.Read(bytes.NewReader(got.body))
}

// engineMetrics reads the metrics page of an engine. TensorRT-LLM's has its iterations where others have the page, as a JSON list.
func (a asker) engineMetrics(ctx context.Context, base string) (promtext.Page, error) {
	got, err := a.get(ctx, base+"/metrics")
	if err == nil && bytes.HasPrefix(got.body, []byte("[")) {
		got, err = a.get(ctx, base+"/prometheus/metrics")
	}
	if err != nil {
		return nil, err
	}
	return promtext.Read(bytes.NewReader(got.body))
}

// models returns the models that a server serves, the engine's own first.
func (a asker) models(ctx context.Context, base string) ([]model, error) {
	var list struct{ Data []model }
	if err := a.getJSON(ctx, base+"/v1/models", &list); err != nil {
		return nil, err
	}
	if len(list.Data) == 0 {
		return nil, errors.New("it serves no model")
	}
	return list.Data, nil
}

// statusError is the status of a response, where another one was expected.
type statusError int

func (e statusError) Error() string {
	return fmt.Sprintf("it answers %d %s", int(e), http.StatusText(int(e)))
}

// cause shortens an error to the part that fits into a line.
func cause(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.New("no answer in time")
	}
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

func refused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// skew is how far a server's clock is ahead of this machine's.
type skew struct {
	known bool
	ahead time.Duration
	slack time.Duration // possible error of the measurement
}

type skewWatch struct{ sent time.Time }

func startSkew() skewWatch { return skewWatch{time.Now()} }

// read compares a Date header, which has whole seconds, with the times of request and response.
func (w skewWatch) read(date string) skew {
	then, err := http.ParseTime(date)
	if err != nil {
		return skew{}
	}
	took := time.Since(w.sent)
	middle := w.sent.Add(took / 2)
	return skew{true, then.Add(time.Second / 2).Sub(middle), time.Second/2 + took/2}
}
