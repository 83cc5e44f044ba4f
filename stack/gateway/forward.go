package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

const (
	backoffBase = 5 * time.Millisecond // as in Envoy's bootstrap
	backoffMost = 50 * time.Millisecond
)

// forward sends the request to one endpoint after the other until one answers.
func (c *call) forward(ctx context.Context) (answer *http.Response, served string, err error) {
	for try := 0; ; try++ {
		served = c.endpoints[try%len(c.endpoints)]
		answer, err = c.try(ctx, served)
		if failure := c.body.failure(); failure != nil && err != nil {
			return nil, "", failure // it is not a failure of the endpoint
		}
		if !retriable(answer, err) || try == retries || !c.body.repeatable() || ctx.Err() != nil {
			return answer, served, err
		}
		if answer != nil {
			answer.Body.Close()
		}
		select {
		case <-ctx.Done():
			return nil, "", context.Cause(ctx)
		case <-time.After(backoff(try)):
		}
	}
}

// backoff returns a random time up to a limit that doubles with each try.
func backoff(try int) time.Duration { return rand.N(min(backoffBase<<try, backoffMost)) }

// retriable reports whether another endpoint may be tried: there is no answer, or the answer says so.
func retriable(answer *http.Response, err error) bool {
	if err != nil {
		return true
	}
	return answer.StatusCode >= http.StatusInternalServerError && answer.Header.Get(pd.HeaderRetry) == "1"
}

func (c *call) try(ctx context.Context, endpoint string) (*http.Response, error) {
	target, err := url.ParseRequestURI(c.head.Path)
	if err != nil {
		return nil, fmt.Errorf("reading the path: %w", err)
	}
	target.Scheme, target.Host = "http", endpoint
	out := (&http.Request{Method: c.head.Method, URL: target, Host: c.head.Authority}).WithContext(ctx)
	out.Header = c.head.Header.Clone()
	out.Header.Del("Content-Length")
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = nil // otherwise the transport adds its own
	}
	if c.in.Body != http.NoBody {
		out.ContentLength = -1 // the picker may have changed it
		for _, name := range c.trailer {
			if out.Trailer == nil {
				out.Trailer = http.Header{}
			}
			out.Trailer[name] = nil
		}
		out.Body = c.body.reader(out.Trailer)
		// A connection that the endpoint closed while it was idle is no failure of the endpoint.
		out.GetBody = func() (io.ReadCloser, error) {
			if !c.body.repeatable() {
				return nil, errors.New("the body is not kept any more")
			}
			return c.body.reader(out.Trailer), nil
		}
	}
	answer, err := c.g.transport.RoundTrip(out)
	if err != nil {
		return nil, fmt.Errorf("asking an endpoint: %w", err)
	}
	return answer, nil
}
