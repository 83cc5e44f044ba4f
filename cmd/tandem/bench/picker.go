package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	procclient "github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/pd"
)

// tablePicker is the heading of the picker's series, and tableAbsolute that of figures that have an absolute limit.
const (
	tablePicker   = "Picker of 64 endpoints: CPU time per request, ms. Baseline: an ext-proc server that parses nothing."
	tableAbsolute = "Without a baseline"
)

// pickerSeries is one series of the endpoint picker.
type pickerSeries struct {
	size      int // of the body, bytes
	endpoints int
	pair      bool
	fresh     bool // no prompt repeats, so nothing of it is cached
	limit     float64
}

func pickerTable() []pickerSeries {
	return []pickerSeries{
		{1 * kB, 64, false, false, 2}, {32 * kB, 64, false, false, 1.7}, {512 * kB, 64, false, false, 1.5},
		{32 * kB, 64, false, true, 1.7}, {512 * kB, 64, false, true, 1.5},
		{1 * kB, 64, true, false, 1.7}, {32 * kB, 64, true, false, 1.7}, {512 * kB, 64, true, false, 1.7},
		{1 * kB, 512, false, false, 2.6},
	}
}

func (s pickerSeries) name() string {
	name := sized(s.size)
	if s.pair {
		name = "two filters, " + name
	}
	if s.fresh {
		name += ", remote"
	}
	if s.endpoints != fleetSize {
		name += fmt.Sprintf(", %d endpoints", s.endpoints)
	}
	return name
}

// asked is a set of pickers with the lanes that send requests to them.
type asked struct {
	contenders []*contender
	conns      []*procclient.Conn
}

func (a *asked) close() {
	for _, c := range a.contenders {
		closeAll(c.lanes)
	}
	for _, c := range a.conns {
		_ = c.Close()
	}
}

// newAsked starts the pickers of a series, with lanes for so many concurrent requests.
func newAsked(ctx context.Context, f *fleet, series pickerSeries, lanes int) (a *asked, err error) {
	a = &asked{}
	baseline, err := f.lab.baseline(ctx, baselinePicker, "10.0.0.1:8000")
	if err != nil {
		return a, err
	}
	ours, err := f.picker(ctx)
	if err != nil {
		return a, err
	}
	a.contenders = []*contender{{part: partBaseline, subjects: []*subject{baseline}}, {part: partOurs, subjects: []*subject{ours}}}
	if f.other != "" && !series.pair { // other products' pickers do not know the pair of filters
		other, err := f.startOther(ctx)
		if err != nil {
			return a, err
		}
		a.contenders = append(a.contenders, &contender{part: partOther, subjects: []*subject{other}})
	}
	for _, c := range a.contenders {
		conn, err := procclient.Dial(procclient.Options{Addresses: []string{c.subjects[0].addr}, Plaintext: true})
		if err != nil {
			return a, err
		}
		a.conns = append(a.conns, conn)
		for i := range lanes {
			c.lanes = append(c.lanes, newAsker(conn, series, i))
		}
	}
	return a, nil
}

// measurePicker measures one series. command is another picker; "" = none.
func measurePicker(ctx context.Context, l *lab, series pickerSeries, command rival, o options) (Row, error) {
	f, err := newFleet(l, series.endpoints)
	if err != nil {
		return Row{}, err
	}
	f.other = command
	a, err := newAsked(ctx, f, series, inFlight)
	defer func() { a.close() }()
	if err != nil {
		return Row{}, err
	}
	costs, err := compare(ctx, a.contenders, o)
	if err != nil {
		return Row{}, err
	}
	row := rated(tablePicker, series.name(), a.contenders, costs, series.limit)
	var loads [][]exchanger
	for _, c := range a.contenders {
		loads = append(loads, c.lanes)
	}
	times, err := pace(ctx, loads, 100, o)
	if err != nil {
		return Row{}, a.contenders[1].died(err)
	}
	for i, c := range a.contenders[1:] {
		(*row.figure(c.part)).later(times[i+1], times[0])
	}
	return row, nil
}

// measureDecision measures how long a picker takes to decide about a long prompt, from its last byte on, by the picker's own
// clock. The time that a client sees beyond the baseline's is shown next to it; for other products' pickers there is only that.
func measureDecision(ctx context.Context, l *lab, command rival, o options) ([]Row, error) {
	const size = 512 * kB
	f, err := newFleet(l, fleetSize)
	if err != nil {
		return nil, err
	}
	f.other = command
	a, err := newAsked(ctx, f, pickerSeries{size: size, fresh: true}, 1)
	defer func() { a.close() }()
	if err != nil {
		return nil, err
	}
	waits, said := make([]delays, len(a.contenders)), delays{}
	for round := range o.rounds + 1 {
		for i, c := range a.contenders {
			lane := c.lanes[0].(*asker)
			lane.waited, lane.said = nil, nil
			if _, err := closed(ctx, c.lanes, o.span); err != nil {
				return nil, c.died(err)
			}
			if round > 0 {
				waits[i] = append(waits[i], lane.waited)
			}
			if c.part == partOurs && round > 0 {
				said = append(said, lane.said)
			}
		}
	}
	return decisionRows(a.contenders, waits, said)
}

// decisionRows returns the rows of two quantiles.
func decisionRows(contenders []*contender, waits []delays, said delays) (rows []Row, err error) {
	all := slices.Concat(said...)
	if len(all) == 0 {
		return nil, fmt.Errorf("the picker does not report its decision time: its answers have no plan header")
	}
	for _, q := range []struct {
		name        string
		part, limit float64
	}{{"p50", 0.5, 0.1}, {"p99", 0.99, 0.4}} {
		var values []float64
		for _, round := range said {
			values = append(values, quantile(round, q.part))
		}
		row := absolute(tableAbsolute, "picker, time from the last byte of 512 kB to the decision, "+q.name+", ms", values, q.limit)
		row.Ours.Value = quantile(all, q.part)
		row.Passed = row.Ours.Value <= q.limit
		for i, c := range contenders[1:] {
			figure := row.figure(c.part)
			if *figure == nil {
				*figure = &Figure{Value: quantile(slices.Concat(waits[i+1]...), q.part) - quantile(slices.Concat(waits[0]...), q.part)}
			}
			(*figure).later(waits[i+1], waits[0])
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// asker sends requests to a picker as Envoy does, one after the other.
type asker struct {
	conn  *procclient.Conn
	pair  bool
	fresh bool
	head  procclient.RequestHead
	body  []byte
	at    int // place of the number in the prompt
	sent  int // requests so far
	// waited is the time of each decision from the last byte on, measured here; said is the same time as the picker reports
	// it. Both in ms.
	waited, said []float64
}

// newAsker returns an asker with a prompt of its own.
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

// account plays the second filter of the pair.
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

// answered reports the end of the answer to the picker, which does not see the answer's body.
func answered(stream *procclient.Stream) error {
	head := procclient.ResponseHead{Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}}
	if err := stream.ResponseHeaders(head, true); err != nil {
		return err
	}
	_, err := stream.Recv()
	return err
}

// pick sends the request and receives answers at the same time: a picker may begin to return the body before it has all of
// it.
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

// decision is the picker's answer to a request's headers.
type decision struct {
	set procclient.Mutation
	at  time.Time
}

// receive receives all answers to a request.
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

// send sends the request in pieces as Envoy does, with or without its end.
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

// saidBy returns the time from the last byte of a request to its decision, from the plan header if there is one.
func saidBy(set procclient.Mutation) (time.Duration, bool) {
	for _, field := range set.Set {
		if field.Name == strings.ToLower(pd.HeaderPlan) {
			plan, err := pd.ParsePlan(field.Value)
			return plan.EPP, err == nil
		}
	}
	return 0, false
}
