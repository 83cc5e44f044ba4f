package relay

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// MaxBuffered is the largest answer that is buffered to read or correct its end (bytes).
const MaxBuffered = 8 << 20

// usageReaders are of *body.UsageReader, whose scanner has memory that is worth keeping.
var usageReaders = sync.Pool{New: func() any { return new(body.UsageReader) }}

// relayWhole passes on an answer that is not an event stream. Its headers wait for its first byte, so that they can report
// the time to it, and an answer that breaks off before it can be refused. It is buffered only if its end must be reported or
// corrected, or if another engine is asked when it breaks off.
func (c *Client) relayWhole(resp *http.Response, a *Answer) error {
	if _, err := a.Peek(); err != nil && err != io.EOF {
		return c.brokeOff(err)
	}
	if c.Aborted != nil && resp.StatusCode == http.StatusOK && !Encoded(resp.Header) {
		if err := a.PeekWhole(resp.ContentLength, c.Aborted); err != nil {
			return c.brokeOff(err)
		}
	}
	c.Clock.Enter(pd.PhaseDecode, time.Now())
	buffered := c.complete != nil || (c.Holds || c.reports() || c.correctsUsage()) && resp.ContentLength <= MaxBuffered
	if buffered && resp.StatusCode == http.StatusOK && !Encoded(resp.Header) {
		return c.relayBuffered(resp, a)
	}
	c.sendHeaders(resp, false)
	usage := usageReaders.Get().(*body.UsageReader)
	defer usageReaders.Put(usage)
	usage.Reset()
	if err := c.copyAnswer(a, usage, !Encoded(resp.Header)); err != nil {
		c.Failure = err
		panic(http.ErrAbortHandler) // half an answer must not look complete
	}
	if u, ok := usage.Usage(); ok {
		c.Usage = u
	}
	c.End = pd.EndDone
	if resp.StatusCode >= http.StatusBadRequest {
		c.End = pd.EndError
	}
	c.sendTrailers(resp)
	return nil
}

var errTooLong = fmt.Errorf("the answer, which lacks something that only prefill has, is longer than %d bytes", MaxBuffered)

// brokeOff returns the error for an answer that ended before any of it was sent.
func (c *Client) brokeOff(err error) error {
	if c.Context.Err() != nil {
		return c.Exchange.Interrupted()
	}
	refusal := pd.Refuse(pd.NoEndpoint, "The decode engine of this pod broke off before its answer. Try again; another pod will answer.")
	refusal.Cause = err
	return refusal
}

// copyAnswer copies the answer to the client as it arrives, and reads its usage if read is true.
func (c *Client) copyAnswer(a *Answer, usage *body.UsageReader, read bool) error {
	for {
		chunk, err := a.Peek()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if read {
			_, err := usage.Write(chunk)
			read = err == nil
		}
		if _, err := c.Writer.Write(chunk); err != nil {
			return err
		}
		a.Skip()
		c.flush()
	}
}

// relayBuffered reads an answer to its end before it passes it on.
func (c *Client) relayBuffered(resp *http.Response, a *Answer) error {
	whole, err := io.ReadAll(io.LimitReader(a, MaxBuffered+1))
	if err != nil {
		return c.brokeOff(err)
	}
	if err := c.Exchange.CheckWhole(whole); err != nil {
		return c.brokeOff(err)
	}
	rest := len(whole) > MaxBuffered
	if c.complete != nil {
		if rest {
			return c.brokeOff(errTooLong)
		}
		whole = c.complete(whole)
	}
	usage := usageReaders.Get().(*body.UsageReader)
	defer usageReaders.Put(usage)
	if u, ok := usage.Event(whole); ok {
		c.Usage = u
		if c.correctsUsage() {
			whole = correctUsage(whole, !rest, c.cached)
			c.Usage.Cached = c.cached
		}
	}
	if !rest {
		resp.Header.Set("Content-Length", strconv.Itoa(len(whole))) // corrections change it
		c.End = pd.EndDone
		if c.reports() {
			c.Clock.Stop(time.Now())
			c.Writer.Header().Set(keyOutcome, c.summary().String())
		}
	}
	c.sendHeaders(resp, false)
	if _, err := c.Writer.Write(whole); err != nil {
		c.Failure, c.End = err, pd.EndAborted
		return nil
	}
	if rest {
		if _, err := io.Copy(c.Writer, a); err != nil {
			panic(http.ErrAbortHandler) // half an answer must not look complete
		}
		c.End = pd.EndDone
	}
	return nil
}

// SendBytes sends an engine's refusal that was read completely.
func (c *Client) SendBytes(status int, header http.Header, b []byte) {
	header.Set("Content-Length", strconv.Itoa(len(b)))
	c.sendHeaders(&http.Response{StatusCode: status, Header: header}, false)
	c.End = pd.EndError
	if _, err := c.Writer.Write(b); err != nil {
		c.Failure, c.End = err, pd.EndAborted
	}
}
