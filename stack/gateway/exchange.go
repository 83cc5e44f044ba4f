package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tandem-serving/tandem/epp/extproc/client"
)

// exchange is one ext-proc stream of one request, with the goroutine that receives its answers.
type exchange struct {
	stream *client.Stream
	body   *spool // gets the body from the picker; nil if none is sent
	// answers has all answers but bodies, in their order. It has room for all of them, because each is sent once.
	answers chan client.Answer
	ended   chan struct{} // closed when the stream has ended and err is set
	err     error
}

// replied is the error of a caller that waited for another answer, when the picker answers the client itself.
type replied struct{ *client.Reply }

// Error implements error.
func (r replied) Error() string { return fmt.Sprintf("the picker answers with status %d", r.Status) }

func (g *Gateway) open(ctx context.Context, f client.Filter, body *spool) (*exchange, error) {
	stream, err := g.picker.Open(ctx, f)
	if err != nil {
		return nil, err
	}
	x := &exchange{stream: stream, body: body, answers: make(chan client.Answer, 3), ended: make(chan struct{})}
	go x.receive()
	return x, nil
}

func (x *exchange) receive() {
	defer close(x.ended)
	for x.err == nil {
		var a client.Answer
		if a, x.err = x.stream.Recv(); x.err == nil {
			x.err = x.take(a)
		}
	}
	if x.body != nil {
		err := x.err
		if err == io.EOF {
			err = errors.New("the picker left before it had answered the request")
		}
		x.body.end(err) // without effect if the body has ended
	}
}

// take passes an answer to the body or to the caller that waits for it.
func (x *exchange) take(a client.Answer) error {
	switch a.Kind {
	case client.RequestBody:
		x.body.add(a.Body, a.End)
		return nil
	case client.RequestTrailers:
		x.body.endWithTrailer(a.Mutation)
		return nil
	case client.Immediate:
		return replied{a.Reply}
	default:
		x.answers <- a
		return nil
	}
}

// await waits for the next answer about a head or trailers; a timeout of 0 means none.
func (x *exchange) await(ctx context.Context, timeout time.Duration) (client.Answer, error) {
	var late <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case a := <-x.answers:
		return a, nil
	case <-x.ended:
	case <-ctx.Done():
		return client.Answer{}, context.Cause(ctx)
	case <-late:
		return client.Answer{}, fmt.Errorf("no answer of the picker within %v", timeout)
	}
	select {
	case a := <-x.answers: // it arrived before the end
		return a, nil
	default:
		return client.Answer{}, x.err
	}
}

// sent waits for an answer if sending succeeded. If sending failed with io.EOF, the receiving side has the cause.
func (x *exchange) sent(ctx context.Context, err error, timeout time.Duration) (client.Answer, error) {
	if err != nil && err != io.EOF {
		return client.Answer{}, err
	}
	return x.await(ctx, timeout)
}

// close ends the stream and waits for the goroutine.
func (x *exchange) close() {
	x.stream.Close()
	<-x.ended
}
