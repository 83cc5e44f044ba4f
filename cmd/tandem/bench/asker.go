package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	procclient "github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/pd"
)

// asker asks a picker as Envoy would, one request after the other.
type asker struct {
	conn  *procclient.Conn
	pair  bool
	fresh bool
	head  procclient.RequestHead
	body  []byte
	at    int // where a number stands in the prompt
	sent  int // requests
	// waited is how long each decision took from the last byte on, as it is seen here, and said the same as the picker says
	// it, both in ms.
	waited, said []float64
}

// newAsker makes a lane with a prompt of its own.
func newAsker(conn *procclient.Conn, series pickerSeries, number int) *asker {
	body := []byte(shape{size: series.size}.body())
	a := &asker{conn: conn, pair: series.pair, fresh: series.fresh, body: body, at: bytes.Index(body, []byte("the")),
		head: procclient.RequestHead{Method: http.MethodPost, Scheme: "http", Authority: "bench", Path: "/v1/completions",
			Header: http.Header{"Content-Type": {"application/json"}, "Content-Length": {strconv.Itoa(len(body))}}}}
	copy(a.body[a.at:], fmt.Sprintf("%03d ", number))
	return a
}

func (a *asker) close() {}

func (a *asker) exchange(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	if a.sent++; a.fresh {
		copy(a.body[a.at+len("000 "):], fmt.Sprintf("%08d", a.sent))
	}
	if !a.pair {
		_, err := a.pick(ctx, procclient.Single(), answered)
		return err
	}
	set, err := a.pick(ctx, procclient.Picker(), func(*procclient.Stream) error { return nil })
	if err != nil {
		return err
	}
	return a.account(ctx, set)
}

// account is the second filter of the pair.
func (a *asker) account(ctx context.Context, set procclient.Mutation) error {
	stream, err := a.conn.Open(ctx, procclient.Acct())
	if err != nil {
		return err
	}
	defer stream.Close()
	head := a.head
	head.Header = head.Header.Clone()
	set.Apply(head.Header, nil)
	if err := stream.RequestHeaders(head, false); err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return answered(stream)
}

// answered tells the picker of the answer, whose body it does not see.
func answered(stream *procclient.Stream) error {
	head := procclient.ResponseHead{Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}}
	if err := stream.ResponseHeaders(head, true); err != nil {
		return err
	}
	_, err := stream.Recv()
	return err
}

// pick sends the request and takes its answers while it does: a picker may begin to give the body back before it has all.
func (a *asker) pick(ctx context.Context, filter procclient.Filter,
	then func(*procclient.Stream) error) (procclient.Mutation, error) {
	var set procclient.Mutation
	stream, err := a.conn.Open(ctx, filter)
	if err != nil {
		return set, err
	}
	defer stream.Close()
	var decided time.Time
	received := make(chan error, 1)
	go func() {
		first, err := receive(stream)
		set, decided = first.set, first.at
		received <- err
	}()
	err = a.send(stream, true)
	last := time.Now()
	if err = errors.Join(err, <-received); err != nil {
		return set, err
	}
	a.waited = append(a.waited, milliseconds(decided.Sub(last)))
	if said, ok := saidBy(set); ok {
		a.said = append(a.said, milliseconds(said))
	}
	return set, then(stream)
}

// decision is the answer to a request's head.
type decision struct {
	set procclient.Mutation
	at  time.Time
}

// receive takes all answers to a request.
func receive(stream *procclient.Stream) (d decision, err error) {
	for !stream.RequestDone() {
		answer, err := stream.Recv()
		if err != nil {
			return d, err
		}
		switch answer.Kind {
		case procclient.Immediate:
			return d, fmt.Errorf("the picker refuses with %d: %s", answer.Reply.Status, answer.Reply.Body)
		case procclient.RequestHeaders:
			d = decision{answer.Mutation, time.Now()}
		}
	}
	return d, nil
}

// send sends the request in pieces as Envoy does, with its end or without.
func (a *asker) send(stream *procclient.Stream, end bool) error {
	if err := stream.RequestHeaders(a.head, false); err != nil {
		return err
	}
	for rest := a.body; len(rest) > 0; {
		n := min(len(rest), envoyChunk)
		if err := stream.RequestBody(rest[:n], end && n == len(rest)); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// saidBy is the time from the last byte of a request to its decision as the plan gives it, if there is one.
func saidBy(set procclient.Mutation) (time.Duration, bool) {
	for _, field := range set.Set {
		if field.Name == strings.ToLower(pd.HeaderPlan) {
			plan, err := pd.ParsePlan(field.Value)
			return plan.EPP, err == nil
		}
	}
	return 0, false
}
