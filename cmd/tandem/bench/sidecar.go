package bench

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

const (
	kB = 1000
	mB = 1000 * kB
	// inFlight is the number of concurrent requests.
	inFlight = 16
	// answerEvents and answerPace describe a streamed answer: 200 tokens, kept apart on the wire.
	answerEvents = 200
	answerPace   = 2 * time.Millisecond
)

// tableSidecar is the heading of the sidecar's series.
const tableSidecar = "Sidecar: CPU time per request, ms. Baseline: a bare reverse proxy for each leg."

// Limits of a request that is split, in the CPU time of a bare proxy for each leg, if the legs are sent one after the other, and at once.
const (
	serialLimit     = 1.25
	concurrentLimit = 1.35
)

// handoverLimit is how long a split request of 1 kB may take beyond the engines' time, p50, in ms.
const handoverLimit = 2

// sidecarSeries is one series of the sidecar.
type sidecarSeries struct {
	name     string
	shape    shape
	remote   bool
	protocol protocol // of a remote one
	stream   bool
	limit    float64
}

func sidecarTable() []sidecarSeries {
	var all []sidecarSeries
	for _, size := range []int{1 * kB, 32 * kB, 512 * kB, 4 * mB} {
		limit := 1.15
		if size == 4*mB {
			limit = 1.4
		}
		all = append(all, sidecarSeries{name: "local, " + sized(size), shape: shape{size: size}, protocol: nixl(), limit: limit})
	}
	for _, kind := range []struct {
		name  string
		shape shape
		limit float64
	}{{"P/D", shape{}, serialLimit}, {"P/D, chunked", shape{chunked: true}, 1.5}, {"P/D, escaped", shape{escaped: true}, 2}} {
		for _, size := range []int{1 * kB, 32 * kB, 512 * kB, 4 * mB} {
			s := sidecarSeries{name: kind.name + ", " + sized(size), shape: kind.shape, remote: true, protocol: nixl(), limit: kind.limit}
			if s.shape.size = size; size == 1*kB && !s.shape.chunked && !s.shape.escaped {
				s.limit = 1.1
			}
			all = append(all, s)
		}
	}
	for _, size := range []int{1 * kB, 32 * kB, 512 * kB} {
		all = append(all, sidecarSeries{name: "P/D at once, " + sized(size), shape: shape{size: size}, remote: true, protocol: sglang(), limit: concurrentLimit})
	}
	for _, p := range protocols() {
		limit := serialLimit
		if p.atOnce {
			limit = concurrentLimit
		}
		for _, size := range []int{1 * kB, 32 * kB} {
			all = append(all, sidecarSeries{name: p.name + ", " + sized(size), shape: shape{size: size}, remote: true, protocol: p, limit: limit})
		}
	}
	return append(all, sidecarSeries{name: fmt.Sprintf("P/D, 1 kB, %d events", answerEvents), shape: shape{size: kB},
		remote: true, protocol: nixl(),
		stream: true, limit: 1.1})
}

func sized(bytes int) string {
	if bytes >= mB {
		return fmt.Sprintf("%d MB", bytes/mB)
	}
	return fmt.Sprintf("%d kB", bytes/kB)
}

// legs are the engines behind a sidecar.
type legs struct {
	lab             *lab
	protocol        protocol
	prefill, decode *engine
}

// newLegs starts engines of a protocol for prompts of a size.
func newLegs(ctx context.Context, l *lab, p protocol, size int, stream bool) (s *legs, err error) {
	s = &legs{lab: l, protocol: p}
	if s.prefill, err = l.engine(ctx, largeBuffer, whole(p.prefilled(size, noTransfer))); err != nil {
		return nil, err
	}
	p.prefilling(s.prefill, size)
	answer := whole(p.decoded)
	if stream {
		answer = streamed(answerEvents, answerPace)
	}
	if s.decode, err = l.engine(ctx, largeBuffer, answer); err != nil {
		return nil, err
	}
	p.lending(s.decode, size)
	return s, nil
}

// measureSidecar measures one series. command is another sidecar; "" = none.
func measureSidecar(ctx context.Context, l *lab, series sidecarSeries, command rival, o options) ([]Row, error) {
	legs, err := newLegs(ctx, l, series.protocol, series.shape.size, series.stream)
	if err != nil {
		return nil, err
	}
	contenders, err := legs.contenders(ctx, series, command)
	defer func() {
		for _, c := range contenders {
			closeAll(c.lanes)
		}
	}()
	if err != nil {
		return nil, err
	}
	costs, err := compare(ctx, contenders, o)
	if err != nil {
		return nil, err
	}
	row := rated(tableSidecar, series.name, contenders, costs, series.limit)
	var later []float64
	if !series.shape.chunked && !series.shape.escaped { // chunking and escaping change only CPU time
		if later, err = legs.added(ctx, series, contenders, &row, o); err != nil {
			return nil, err
		}
	}
	rows := []Row{row}
	if later != nil && series.remote && !series.stream && series.shape.size == kB {
		rows = append(rows, row.handover(later))
	}
	if series.stream && row.Ours.Allocs != nil {
		rows = append(rows, absolute(tableAbsolute, "sidecar, allocs/req, "+series.name,
			[]float64{*row.Ours.Allocs}, 300))
	}
	return rows, nil
}

// handover returns the row that judges how much later than from the engines the answers of a series come: later is by round, in ms.
func (r *Row) handover(later []float64) Row {
	judged := absolute(tableAbsolute, "sidecar, time beyond the engines', "+r.Series+", p50, ms", later, handoverLimit)
	judged.Ours.P50, judged.Ours.P99 = r.Ours.P50, r.Ours.P99
	if r.Other != nil {
		judged.Other = &Figure{Value: *r.Other.P50, P50: r.Other.P50, P99: r.Other.P99}
	}
	return judged
}

// contenders returns the programs of a series.
func (s *legs) contenders(ctx context.Context, series sidecarSeries, command rival) (all []*contender, err error) {
	baseline, err := s.baselines(ctx, series)
	if err != nil {
		return nil, err
	}
	all = append(all, baseline)
	if series.remote {
		series.shape.prefill, series.shape.readsBack = s.prefill.addr(), series.protocol.readsBack
	}
	request := series.shape.request()
	ours := &contender{part: partOurs, subjects: make([]*subject, 1)}
	var flags []string
	if series.protocol.flags != nil {
		flags = series.protocol.flags(s)
	}
	if ours.subjects[0], err = s.lab.sidecar(ctx, s.decode, flags...); err != nil {
		return all, err
	}
	all = append(all, ours)
	if err := s.mustSplit(ctx, ours.subjects[0], request, series); err != nil {
		return all, err
	}
	if ours.lanes, err = lanesTo(ctx, ours.subjects[0].addr, inFlight, request); err != nil || command == "" {
		return all, err
	}
	other := &contender{part: partOther, subjects: make([]*subject, 1)}
	if other.subjects[0], err = s.startOther(ctx, command); err != nil {
		return all, err
	}
	other.lanes, err = lanesTo(ctx, other.subjects[0].addr, inFlight, request)
	return append(all, other), err
}

// mustSplit returns an error unless the sidecar sends requests to the engines that the series is about: what it does otherwise would be
// measured under a wrong name.
func (s *legs) mustSplit(ctx context.Context, sidecar *subject, request []byte, series sidecarSeries) error {
	if !series.remote {
		return nil
	}
	c, err := dial(ctx, sidecar.addr, request)
	if err != nil {
		return sidecar.died(fmt.Errorf("connecting: %w", err))
	}
	defer c.close()
	for range 2 { // what the sidecar learns from the first one shows in the second
		before := s.decode.accepted.Load()
		head, err := c.send()
		if err != nil {
			return sidecar.died(err)
		}
		if decision := head.Get(pd.HeaderDecision); !strings.HasPrefix(decision, "remote;") {
			return fmt.Errorf("the sidecar does not split requests of this series: it says %q", decision)
		}
		if n := s.decode.accepted.Load() - before; series.protocol.readsBack != (n > 1) {
			return fmt.Errorf("the decode engine got %d legs of one request", n)
		}
	}
	return nil
}

// baselines starts a bare proxy in front of each engine that a series uses. A request goes through both, as through a sidecar.
func (s *legs) baselines(ctx context.Context, series sidecarSeries) (*contender, error) {
	c := &contender{part: partBaseline}
	var targets []string
	for _, e := range s.engines(series.remote) {
		baseline, err := s.lab.baseline(ctx, baselineProxy, e.addr())
		if err != nil {
			return nil, err
		}
		c.subjects, targets = append(c.subjects, baseline), append(targets, baseline.addr)
	}
	var err error
	c.lanes, err = lanesAlong(ctx, targets, inFlight, series.shape.request(), series.protocol.atOnce)
	return c, err
}

// engines returns the engines that a request reaches, in order.
func (s *legs) engines(remote bool) []*engine {
	switch {
	case remote && s.protocol.readsBack:
		return []*engine{s.decode, s.prefill, s.decode}
	case remote:
		return []*engine{s.prefill, s.decode}
	}
	return []*engine{s.decode}
}

// lanesAlong returns lanes that send a request to several servers, in turn or at once.
func lanesAlong(ctx context.Context, targets []string, n int, request []byte, atOnce bool) (lanes []exchanger, err error) {
	for range n {
		var legs []exchanger
		for _, target := range targets {
			c, err := dial(ctx, target, request)
			if err != nil {
				closeAll(legs)
				return lanes, fmt.Errorf("connecting: %w", err)
			}
			legs = append(legs, c)
		}
		if atOnce {
			lanes = append(lanes, together(legs))
		} else {
			lanes = append(lanes, inTurn(legs))
		}
	}
	return lanes, nil
}

// direct returns lanes that call the engines as a sidecar does, with nothing in between.
func (s *legs) direct(ctx context.Context, request []byte, remote, atOnce bool, n int) ([]exchanger, error) {
	var targets []string
	for _, e := range s.engines(remote) {
		targets = append(targets, e.addr())
	}
	return lanesAlong(ctx, targets, n, request, atOnce)
}

func (s *legs) startOther(ctx context.Context, command rival) (*subject, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	_, enginePort, err := net.SplitHostPort(s.decode.addr())
	if err != nil {
		return nil, err
	}
	return command.start(ctx, s.lab, net.JoinHostPort("127.0.0.1", port), "{port}", port, "{engine-port}", enginePort)
}

// added measures how much later answers come through the programs than from the engines themselves, at a rate that leaves
// every program idle most of the time: it adds that to the row, and returns ours by round, in ms. For a streamed answer the first event
// counts, so it has only that.
func (s *legs) added(ctx context.Context, series sidecarSeries, contenders []*contender, row *Row, o options) (ours []float64, err error) {
	rate := 100.0
	if series.shape.size > 100*kB {
		rate = 20
	}
	if series.stream {
		s.decode.answers(streamed(1, 0))
	}
	direct, err := s.direct(ctx, series.shape.request(), series.remote, series.protocol.atOnce, inFlight)
	defer func() { closeAll(direct) }()
	if err != nil {
		return nil, err
	}
	loads := [][]exchanger{direct}
	for _, c := range contenders {
		loads = append(loads, c.lanes)
	}
	times, err := pace(ctx, loads, rate, o)
	if err != nil {
		return nil, err
	}
	for i, c := range contenders {
		(*row.figure(c.part)).later(times[i+1], times[0])
		if c.part == partOurs {
			ours, _ = times[i+1].added(times[0])
		}
	}
	return ours, nil
}
