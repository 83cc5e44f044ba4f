package bench

import (
	"context"
	"fmt"
	"net"
	"time"
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

// sidecarSeries is one series of the sidecar.
type sidecarSeries struct {
	name   string
	shape  shape
	remote bool
	atOnce bool // both legs are sent at once, as SGLang's are
	stream bool
	limit  float64
}

func sidecarTable() []sidecarSeries {
	var all []sidecarSeries
	for _, size := range []int{1 * kB, 32 * kB, 512 * kB, 4 * mB} {
		limit := 1.15
		if size == 4*mB {
			limit = 1.4
		}
		all = append(all, sidecarSeries{name: "local, " + sized(size), shape: shape{size: size}, limit: limit})
	}
	for _, kind := range []struct {
		name  string
		shape shape
		limit float64
	}{{"P/D", shape{}, 1.25}, {"P/D, chunked", shape{chunked: true}, 1.5}, {"P/D, escaped", shape{escaped: true}, 2}} {
		for _, size := range []int{1 * kB, 32 * kB, 512 * kB, 4 * mB} {
			s := sidecarSeries{name: kind.name + ", " + sized(size), shape: kind.shape, remote: true, limit: kind.limit}
			if s.shape.size = size; size == 1*kB && !s.shape.chunked && !s.shape.escaped {
				s.limit = 1.1
			}
			all = append(all, s)
		}
	}
	for _, size := range []int{1 * kB, 32 * kB, 512 * kB} {
		all = append(all, sidecarSeries{name: "P/D at once, " + sized(size), shape: shape{size: size}, remote: true, atOnce: true, limit: 1.35})
	}
	return append(all, sidecarSeries{name: fmt.Sprintf("P/D, 1 kB, %d events", answerEvents), shape: shape{size: kB},
		remote: true,
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
	prefill, decode *engine
}

// newLegs starts engines for prompts of a size.
func newLegs(ctx context.Context, l *lab, size int, stream bool) (s *legs, err error) {
	s = &legs{lab: l}
	if s.prefill, err = l.engine(ctx, largeBuffer, whole(prefilled(size))); err != nil {
		return nil, err
	}
	answer := whole(decoded)
	if stream {
		answer = streamed(answerEvents, answerPace)
	}
	s.decode, err = l.engine(ctx, largeBuffer, answer)
	return s, err
}

// measureSidecar measures one series. command is another sidecar; "" = none.
func measureSidecar(ctx context.Context, l *lab, series sidecarSeries, command rival, o options) ([]Row, error) {
	legs, err := newLegs(ctx, l, series.shape.size, series.stream)
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
	if !series.shape.chunked && !series.shape.escaped { // chunking and escaping change only CPU time
		if err := legs.added(ctx, series, contenders, &row, o); err != nil {
			return nil, err
		}
	}
	rows := []Row{row}
	if series.stream && row.Ours.Allocs != nil {
		rows = append(rows, absolute(tableAbsolute, "sidecar, allocs/req, "+series.name,
			[]float64{*row.Ours.Allocs}, 300))
	}
	return rows, nil
}

// contenders returns the programs of a series.
func (s *legs) contenders(ctx context.Context, series sidecarSeries, command rival) (all []*contender, err error) {
	baseline, err := s.baselines(ctx, series)
	if err != nil {
		return nil, err
	}
	all = append(all, baseline)
	if series.remote {
		series.shape.prefill = s.prefill.addr()
	}
	request := series.shape.request()
	ours := &contender{part: partOurs, subjects: make([]*subject, 1)}
	var flags []string
	if series.atOnce {
		flags = []string{"--kv-connector=sglang"}
	}
	if ours.subjects[0], err = s.lab.sidecar(ctx, s.decode, flags...); err != nil {
		return all, err
	}
	all = append(all, ours)
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
	c.lanes, err = lanesAlong(ctx, targets, inFlight, series.shape.request(), series.atOnce)
	return c, err
}

// engines returns the engines that a request reaches, in order.
func (s *legs) engines(remote bool) []*engine {
	if remote {
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
// every program idle most of the time. For a streamed answer the first event counts, so it has only that.
func (s *legs) added(ctx context.Context, series sidecarSeries, contenders []*contender, row *Row, o options) error {
	rate := 100.0
	if series.shape.size > 100*kB {
		rate = 20
	}
	if series.stream {
		s.decode.answers(streamed(1, 0))
	}
	direct, err := s.direct(ctx, series.shape.request(), series.remote, series.atOnce, inFlight)
	defer func() { closeAll(direct) }()
	if err != nil {
		return err
	}
	loads := [][]exchanger{direct}
	for _, c := range contenders {
		loads = append(loads, c.lanes)
	}
	times, err := pace(ctx, loads, rate, o)
	if err != nil {
		return err
	}
	for i, c := range contenders {
		(*row.figure(c.part)).later(times[i+1], times[0])
	}
	return nil
}
