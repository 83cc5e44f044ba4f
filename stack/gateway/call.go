package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/pd"
)

// chunkSize is how much of a client's body goes to the picker in one frame, in bytes.
const chunkSize = 64 << 10

// linger is how long the gateway reads the rest of a client's body after its answer is written. If it closed the connection
// while bytes arrive, the connection would be reset, and the client might not see the answer.
const linger = 3 * time.Second

// errUnavailable is what a client learns when the picker or the endpoints fail; the log has the cause.
var errUnavailable = pd.Refuse(pd.NoEndpoint, "The gateway found no endpoint that answers. Try again later.")

// call is one request while it is served.
type call struct {
	g       *Gateway
	w       http.ResponseWriter
	in      *http.Request
	control *http.ResponseController
	trailer []string // names of the trailers that the client has announced

	head      client.RequestHead // as endpoints get it
	endpoints []string           // best first
	body      *spool
	picker    *exchange
	acct      *exchange     // of the pair; the picker's if there is one filter; nil after it has failed
	pumped    chan struct{} // closed when the client's body is not read any more; nil if there is none
	cut       bool          // the picker ended the body early; set before pumped is closed
	unread    bool          // the body had not ended when the answer began
	answering bool          // the status has been sent to the client
}

// serve runs the request: picker, accounting stream, endpoints, and the answer to the client. The error is for refuse, or means
// that the answer is incomplete.
func (c *call) serve(ctx context.Context) error {
	if err := c.pick(ctx); err != nil {
		return err
	}
	if err := c.account(ctx); err != nil {
		return err
	}
	answer, served, err := c.forward(ctx)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if !c.g.options.Single && c.picker.stream.RequestDone() {
		c.picker.close() // it learns nothing of the answer
	}
	removeHopByHop(answer.Header)
	if err := c.tellHead(ctx, answer, served); err != nil {
		return err
	}
	return c.relay(ctx, answer)
}

// pick sends the client's body through the picker, and waits for the changed head.
func (c *call) pick(ctx context.Context) (err error) {
	filter := client.Picker()
	if c.g.options.Single {
		filter = client.Single()
	}
	c.body = newSpool(c.g.options.Keep)
	if c.picker, err = c.g.open(ctx, filter, c.body); err != nil {
		return err
	}
	bodyless := c.in.Body == http.NoBody
	if err := c.picker.stream.RequestHeaders(c.head, bodyless); err != nil && err != io.EOF {
		return err
	}
	if bodyless {
		c.body.add(nil, true)
	} else {
		c.pumped = make(chan struct{})
		go c.pump()
	}
	a, err := c.picker.await(ctx, 0)
	if err != nil {
		return err
	}
	a.Mutation.Apply(c.head.Header, &c.head.Path)
	if a.Endpoints == "" {
		a.Endpoints = c.head.Header.Get(epp.HeaderDestination)
	}
	if c.endpoints = epp.SplitList(a.Endpoints); len(c.endpoints) == 0 {
		return errors.New("the picker named no endpoint")
	}
	return nil
}

// pump sends the client's body to the picker as it arrives. Like Envoy with HTTP/1, it ends with an empty frame.
func (c *call) pump() {
	defer close(c.pumped)
	stream, buf := c.picker.stream, make([]byte, chunkSize)
	for {
		n, err := c.in.Body.Read(buf)
		if n > 0 && stream.RequestBody(buf[:n], false) != nil {
			c.cut = true
			return // the receiving side has the error
		}
		switch {
		case err == io.EOF && len(c.in.Trailer) > 0:
			c.body.expectTrailer(c.in.Trailer)
			_ = stream.RequestTrailers(c.in.Trailer)
			return
		case err == io.EOF:
			_ = stream.RequestBody(nil, true)
			return
		case err != nil:
			c.body.end(fmt.Errorf("reading the client's body: %w", err))
			stream.Close() // the picker would pick for an incomplete body
			return
		}
	}
}

// account opens the accounting stream of the pair. If that fails, the request goes on without it.
func (c *call) account(ctx context.Context) error {
	if c.g.options.Single {
		c.acct = c.picker
		return nil
	}
	x, err := c.g.open(ctx, client.Acct(), nil)
	if err != nil {
		return c.accountingFailed("opening the accounting stream", err)
	}
	c.acct = x
	a, err := x.sent(ctx, x.stream.RequestHeaders(c.head, c.in.Body == http.NoBody), messageTimeout)
	if err != nil {
		return c.accountingFailed("accounting for a request", err)
	}
	a.Mutation.Apply(c.head.Header, &c.head.Path)
	return nil
}

// accountingFailed ends the accounting stream after a failure. With one filter the failure is an error of the request.
func (c *call) accountingFailed(doing string, err error) error {
	if c.g.options.Single && err != io.EOF {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if c.acct != nil && c.acct != c.picker {
		c.acct.close()
	}
	c.acct = nil
	if err != io.EOF { // a stream that has ended in good order wants no more messages
		c.g.log.Warn("going on without the accounting stream", "doing", doing, "error", err)
	}
	return nil
}

// tellHead tells the accounting stream which endpoint answered and how, and changes the answer's head as the stream says.
func (c *call) tellHead(ctx context.Context, answer *http.Response, served string) error {
	if c.acct == nil {
		return nil
	}
	head := client.ResponseHead{Status: answer.StatusCode, Header: answer.Header, Served: served}
	a, err := c.acct.sent(ctx, c.acct.stream.ResponseHeaders(head, answer.Body == http.NoBody), messageTimeout)
	if err != nil {
		return c.accountingFailed("telling the head of an answer", err)
	}
	a.Mutation.Apply(answer.Header, nil)
	return nil
}

// tellTrailer does the same with the trailers.
func (c *call) tellTrailer(ctx context.Context, trailer http.Header) error {
	if c.acct == nil || len(trailer) == 0 {
		return nil
	}
	a, err := c.acct.sent(ctx, c.acct.stream.ResponseTrailers(trailer), messageTimeout)
	if err != nil {
		return c.accountingFailed("telling the trailers of an answer", err)
	}
	a.Mutation.Apply(trailer, nil)
	return nil
}

// relay passes the answer on to the client as it arrives.
func (c *call) relay(ctx context.Context, answer *http.Response) error {
	h := c.w.Header()
	for name, values := range answer.Header {
		h[name] = values
	}
	c.closeUnread(h)
	c.answering = true
	c.w.WriteHeader(answer.StatusCode)
	if answer.ContentLength < 0 { // a stream, whose first bytes may arrive late
		if err := c.control.Flush(); err != nil {
			return fmt.Errorf("writing the answer: %w", err)
		}
	}
	if err := c.copy(answer.Body); err != nil {
		return err
	}
	maps.DeleteFunc(answer.Trailer, func(_ string, values []string) bool { return values == nil }) // announced and not sent
	if err := c.tellTrailer(ctx, answer.Trailer); err != nil {
		return err
	}
	for name, values := range answer.Trailer {
		h[http.TrailerPrefix+name] = values
	}
	return nil
}

// copy passes a body on, each piece at once.
func (c *call) copy(body io.Reader) error {
	buf := make([]byte, chunkSize/2)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if _, err := c.w.Write(buf[:n]); err != nil {
				return fmt.Errorf("writing the answer: %w", err)
			}
			if err := c.control.Flush(); err != nil {
				return fmt.Errorf("writing the answer: %w", err)
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("reading the answer: %w", err)
		}
	}
}

// refuse sends the picker's own answer, or one for a failure before there was an answer.
func (c *call) refuse(ctx context.Context, err error) {
	h := c.w.Header()
	c.closeUnread(h)
	if reply, ok := errors.AsType[replied](err); ok {
		for name, values := range reply.Header {
			h[name] = values
		}
		h.Set("Content-Length", strconv.Itoa(len(reply.Body))) // the client learns its end before the handler ends
		c.w.WriteHeader(reply.Status)
		_, _ = c.w.Write(reply.Body) // a client that has left reads none
		return
	}
	if ctx.Err() == nil {
		c.g.log.Warn("refusing a request", "request", c.head.Header.Get(pd.HeaderRequestID), "error", err)
	}
	body := errUnavailable.JSON(pd.APIOf(c.in.URL.Path))
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Retry-After", errUnavailable.RetryAfter())
	c.w.WriteHeader(errUnavailable.Status())
	_, _ = c.w.Write(body)
}

// closeUnread ends the client's connection after the answer if its body is still arriving.
func (c *call) closeUnread(h http.Header) {
	if c.pumped == nil {
		return
	}
	if c.picker.stream.RequestDone() {
		<-c.pumped // the whole body has been sent
	}
	select {
	case <-c.pumped:
		c.unread = c.cut
	default:
		c.unread = true
	}
	if c.unread {
		h.Set("Connection", "close")
	}
}

// close ends all goroutines and streams of the request, and waits for them.
func (c *call) close(cancel context.CancelFunc) {
	cancel()
	if c.unread { // the client may wait for its answer before it sends more
		wait := linger
		if c.in.ProtoMajor == 2 {
			wait = 0 // HTTP/2 streams need no wait
		}
		_ = c.control.Flush()
		_ = c.control.SetReadDeadline(time.Now().Add(wait)) // also for what the server reads after the handler has ended
	}
	if c.pumped != nil {
		<-c.pumped
	}
	for _, x := range []*exchange{c.picker, c.acct} {
		if x != nil {
			x.close()
		}
	}
}
