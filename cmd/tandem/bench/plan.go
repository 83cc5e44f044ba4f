package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/stack/envoy"
)

// step is one thing to measure. Its name is what --series selects by.
type step struct {
	name string
	run  func(ctx context.Context, result *Result) error
}

// plan is all that can be measured.
type plan struct {
	dir            string // of our executables
	apart          []int  // processors of programs under test
	all            []int  // processors of those that share them
	sidecar, other rival
	options        options
	points         growthPoints
}

// options are how series are measured.
type options struct {
	rounds int
	span   time.Duration // how long one program is loaded in one round
}

// within has a lab of its own for what f measures.
func within(open func() (*lab, error), f func(l *lab) error) (err error) {
	l, err := open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	return f(l)
}

func (p *plan) alone() (*lab, error)    { return newLab(p.dir, p.apart) }
func (p *plan) together() (*lab, error) { return newLab(p.dir, p.all) }

// rows makes a step of what measures rows, in a lab of its own.
func rows(name string, open func() (*lab, error), measure func(ctx context.Context, l *lab) ([]Row, error)) step {
	return step{name, func(ctx context.Context, result *Result) error {
		return within(open, func(l *lab) error {
			r, err := measure(ctx, l)
			result.Rows = append(result.Rows, r...)
			return err
		})
	}}
}

// row is rows of one.
func row(name string, open func() (*lab, error), measure func(ctx context.Context, l *lab) (Row, error)) step {
	return rows(name, open, func(ctx context.Context, l *lab) ([]Row, error) {
		r, err := measure(ctx, l)
		if err != nil {
			return nil, err
		}
		return []Row{r}, nil
	})
}

// throughEnvoy is a step that needs Envoy. Where there is none, the others are measured all the same.
func (p *plan) throughEnvoy(table, name string, measure func(ctx context.Context, l *lab) (Row, error)) step {
	return row(name, p.together, func(ctx context.Context, l *lab) (Row, error) {
		if _, err := envoy.Find(); err != nil {
			return missing(table, name, err), nil
		}
		return measure(ctx, l)
	})
}

// series are all but those of growth, in the order of the tables.
func (p *plan) series() (all []step) {
	for _, s := range sidecarTable() {
		all = append(all, rows("sidecar, "+s.name, p.alone, func(ctx context.Context, l *lab) ([]Row, error) {
			return measureSidecar(ctx, l, s, p.sidecar, p.options)
		}))
	}
	for _, s := range pickerTable() {
		all = append(all, row("picker, "+s.name(), p.alone, func(ctx context.Context, l *lab) (Row, error) {
			return measurePicker(ctx, l, s, p.other, p.options)
		}))
	}
	for _, s := range pathTable() {
		all = append(all, p.throughEnvoy(tablePath, s.name, func(ctx context.Context, l *lab) (Row, error) {
			return measurePath(ctx, l, s, p.options)
		}))
	}
	for _, s := range sidecarHeld() {
		all = append(all, row("memory, sidecar, "+s.String(), p.alone, func(ctx context.Context, l *lab) (Row, error) {
			return measureHeld(ctx, l, s)
		}))
	}
	all = append(all, row("memory, picker", p.alone, func(ctx context.Context, l *lab) (Row, error) {
		return measurePickerHeld(ctx, l, heldSeries{400, 256 * kB})
	}))
	return append(all, p.limits()...)
}

func (p *plan) limits() (all []step) {
	all = append(all,
		rows("limits, picker, decision", p.alone, func(ctx context.Context, l *lab) ([]Row, error) {
			return measureDecision(ctx, l, p.other, p.options)
		}),
		p.throughEnvoy(tableLimits, "limits, picker, messages", measureUnread))
	for _, s := range []struct {
		endpoints int
		bar       float64
	}{{64, 0.05}, {512, 0.25}} {
		name := fmt.Sprintf("limits, picker, idle, %d", s.endpoints)
		all = append(all, row(name, p.alone, func(ctx context.Context, l *lab) (Row, error) {
			return measureIdle(ctx, l, s.endpoints, s.bar, p.options)
		}))
	}
	return all
}

// growth are the curves.
func (p *plan) growth() (all []step) {
	g := &growth{p.alone, p.options, p.points}
	for _, s := range []struct {
		name    string
		measure func(ctx context.Context) ([]Curve, error)
	}{
		{"growth, picks by endpoints", g.picksByEndpoints}, {"growth, scraping by endpoints", g.scrapingByEndpoints},
		{"growth, picker by streams", g.pickerByStreams}, {"growth, sidecar by streams", g.sidecarByStreams},
	} {
		all = append(all, step{s.name, func(ctx context.Context, result *Result) error {
			c, err := s.measure(ctx)
			result.Curves = append(result.Curves, c...)
			return err
		}})
	}
	return all
}
