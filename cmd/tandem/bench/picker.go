package bench

import (
	"context"
	"fmt"
	"slices"

	procclient "github.com/tandem-serving/tandem/epp/extproc/client"
)

// tablePicker is the heading of the picker's series, and tableLimits that of what is held against a limit of its own.
const (
	tablePicker = "Picker: CPU time of a request, ms. Floor: a server that parses nothing. Delays, ms: added to the floor's."
	tableLimits = "Limits"
)

// pickerSeries is one series of the endpoint picker.
type pickerSeries struct {
	size      int // of the body, bytes
	endpoints int
	pair      bool
	fresh     bool // no prompt comes twice, so that nothing of it is cached anywhere
	bar       float64
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
		name = "pair, " + name
	}
	if s.fresh {
		name += ", remote"
	}
	return fmt.Sprintf("%s, %d endpoints", name, s.endpoints)
}

// asked are pickers with the lanes that ask them.
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

// newAsked starts the pickers of a series, with lanes for so many requests at once.
func newAsked(ctx context.Context, f *fleet, series pickerSeries, lanes int) (a *asked, err error) {
	a = &asked{}
	floor, err := f.lab.floor(ctx, floorPicker, "10.0.0.1:8000")
	if err != nil {
		return a, err
	}
	ours, err := f.picker(ctx)
	if err != nil {
		return a, err
	}
	a.contenders = []*contender{{part: partFloor, subjects: []*subject{floor}}, {part: partOurs, subjects: []*subject{ours}}}
	if f.other != "" && !series.pair { // others know no pair
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
	row := rated(tablePicker, series.name(), a.contenders, costs, series.bar)
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

// measureDecision measures how long a picker thinks about a long prompt, from its last byte on, by its own clock. What a
// client sees on top of what it sees of the floor stands beside it, and is all there is of others.
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

// decisionRows are the rows of two quantiles.
func decisionRows(contenders []*contender, waits []delays, said delays) (rows []Row, err error) {
	all := slices.Concat(said...)
	if len(all) == 0 {
		return nil, fmt.Errorf("the picker does not say how long it thought: its answers have no plan")
	}
	for _, q := range []struct {
		name      string
		part, bar float64
	}{{"p50", 0.5, 0.1}, {"p99", 0.99, 0.4}} {
		var values []float64
		for _, round := range said {
			values = append(values, quantile(round, q.part))
		}
		row := absolute(tableLimits, "picker, decision after the last of 512 kB, "+q.name+": ms", values, q.bar)
		row.Ours.Value = quantile(all, q.part)
		row.Met = row.Ours.Value <= q.bar
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
