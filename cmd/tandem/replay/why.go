package replay

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/explain"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/replay"
)

// explained is the story of one request in one run.
type explained struct {
	Config      string           `json:"config"`
	Threshold   *int             `json:"threshold,omitempty"`
	Pool        string           `json:"pool"`
	Engine      string           `json:"engine"`
	Load        float64          `json:"load"`
	Request     int              `json:"request"` // of the trace, from 1
	Explanation *epp.Explanation `json:"explanation"`
	Events      []happened       `json:"events"`
	name        string
}

// happened is one event of a story.
type happened struct {
	At     float64 `json:"at_ms"` // after the arrival
	Engine string  `json:"engine"`
	What   string  `json:"what"`
}

// explain returns the story of a request, as all programs that print explanations have it.
func (r *run) explain(request int, s *replay.Story) (explained, error) {
	x := explained{Config: r.config, Threshold: r.threshold, Pool: r.pool.String(), Engine: r.engine, Load: r.load, Request: request,
		Explanation: &epp.Explanation{}, name: r.name()}
	for _, e := range s.Events {
		x.Events = append(x.Events, happened{millis(e.At), e.Engine, e.What})
	}
	text, err := json.Marshal(s.Explanation)
	if err != nil {
		return explained{}, err
	}
	return x, json.Unmarshal(text, x.Explanation)
}

func (x *explained) write(w io.Writer) error {
	fmt.Fprintf(w, "\nRequest %d with %s\n\n%s\n", x.Request, x.name, explain.Text(x.Explanation, 0))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "after, ms\tengine\t")
	for _, e := range x.Events {
		fmt.Fprintf(t, "%s\t%s\t%s\n", ms(e.At), e.Engine, e.What)
	}
	return t.Flush()
}

// mostChanges is how many requests that lost, and how many that gained, a comparison names.
const mostChanges = 5

// comparison is what a configuration changed against the first one, on the same pool, engine and load.
type comparison struct {
	First   string      `json:"first"`
	Second  string      `json:"second"`
	Pool    string      `json:"pool"`
	Engine  string      `json:"engine"`
	Load    float64     `json:"load"`
	Refused [2]int      `json:"refused_by_one"` // requests that only the first refused, and only the second
	Differ  int         `json:"picks_that_differ"`
	Pick    *divergence `json:"first_pick_that_differs,omitempty"`
	Lost    []change    `json:"lost_most"` // by the second
	Gained  []change    `json:"gained_most"`
	Shadow  *foreseen   `json:"shadow,omitempty"`
}

// divergence is the first request for which the picks differ.
type divergence struct {
	Request int       `json:"request"`
	At      float64   `json:"at_ms"`
	Picks   [2]string `json:"picks"`
	Why     [2]string `json:"why"`
}

// change is one request that both answered, first with the first configuration, then with the second.
type change struct {
	Request int        `json:"request"`
	Input   int        `json:"input_tokens"`
	E2E     [2]float64 `json:"e2e_ms"`
	TTFT    [2]float64 `json:"ttft_ms"`
	Waited  [2]float64 `json:"waited_ms"`
	Cached  [2]int     `json:"cached_tokens"`
	Picks   [2]string  `json:"picks"`
	Cause   string     `json:"cause"` // the pick that made the difference
}

// comparisons compares each run with the first one that differs from it by its configuration only.
func comparisons(ctx context.Context, runs []*run) (all []*comparison, err error) {
	for i, second := range runs {
		j := slices.IndexFunc(runs, func(r *run) bool {
			return r.pool == second.pool && r.engine == second.engine && r.replicas == second.replicas && r.requests == second.requests
		})
		if j == i {
			continue
		}
		c := compare(runs[j], second)
		if c.Shadow, err = foresee(ctx, runs[j], second); err != nil {
			return nil, err
		}
		if c.Pick != nil {
			for k, r := range []*run{runs[j], second} {
				if c.Pick.Why[k], err = r.whyPicked(ctx, c.Pick.Request); err != nil {
					return nil, err
				}
			}
		}
		all = append(all, c)
	}
	return all, nil
}

// pair is the same request in both runs.
type pair [2]*replay.Record

func (p pair) differ() bool {
	a, b := p[0], p[1]
	return a.Refused != b.Refused || a.Prefill != b.Prefill || a.Decode != b.Decode
}

// gain returns how much sooner the second run answered.
func (p pair) gain() time.Duration { return p[0].E2E - p[1].E2E }

func compare(first, second *run) *comparison {
	c := &comparison{First: first.config, Second: second.config, Pool: first.pool.String(), Engine: first.engine, Load: first.load, Lost: []change{}, Gained: []change{}}
	if first.threshold != nil || second.threshold != nil {
		c.First, c.Second = c.First+", threshold "+first.thresholdText(), c.Second+", threshold "+second.thresholdText()
	}
	var answered, diverged []pair
	for i := range first.result.Records {
		p := pair{&first.result.Records[i], &second.result.Records[i]}
		if p.differ() {
			diverged = append(diverged, p)
		}
		switch {
		case !p[0].Refused && !p[1].Refused:
			answered = append(answered, p)
		case p[0].Refused && !p[1].Refused:
			c.Refused[0]++
		case p[1].Refused && !p[0].Refused:
			c.Refused[1]++
		}
	}
	if c.Differ = len(diverged); c.Differ > 0 {
		p := slices.MinFunc(diverged, func(a, b pair) int { return cmp.Compare(a[0].Due, b[0].Due) })
		c.Pick = &divergence{Request: p[0].Index + 1, At: millis(p[0].Due), Picks: [2]string{picked(p[0]), picked(p[1])}}
	}
	slices.SortStableFunc(answered, func(a, b pair) int { return cmp.Compare(a.gain(), b.gain()) })
	for i := range min(mostChanges, len(answered)) {
		if p := answered[i]; p.gain() < 0 {
			c.Lost = append(c.Lost, p.change(1, diverged))
		}
		if p := answered[len(answered)-1-i]; p.gain() > 0 {
			c.Gained = append(c.Gained, p.change(0, diverged))
		}
	}
	return c
}

// change describes the pair. worse is the run in which it took longer.
func (p pair) change(worse int, diverged []pair) change {
	c := change{Request: p[0].Index + 1, Input: p[0].Input, Cause: p.cause(worse, diverged)}
	for i, r := range p {
		c.E2E[i], c.TTFT[i], c.Waited[i], c.Cached[i], c.Picks[i] = millis(r.E2E), millis(r.TTFT), millis(r.Waited), r.Cached, picked(r)
	}
	return c
}

// cause names the pick that made the difference: the request's own, or else that of the longest prompt that was computed in the worse run,
// but not in the other one, on an engine of the request while it was there.
func (p pair) cause(worse int, diverged []pair) string {
	if p.differ() {
		return "its own pick"
	}
	one := p[worse]
	var most pair
	for _, other := range diverged {
		w, b := other[worse], other[1-worse]
		engine := w.Decode // the engine that computed the prompt
		if w.Remote {
			engine = w.Prefill
		}
		there := !w.Refused && (engine == one.Prefill || engine == one.Decode) && (b.Refused || engine != b.Prefill && (b.Remote || engine != b.Decode))
		if there && w.Due <= one.Due+one.E2E && w.Due+w.E2E >= one.Due && (most[0] == nil || w.Input-w.Cached > most[worse].Input-most[worse].Cached) {
			most = other
		}
	}
	if most[0] == nil {
		return "earlier picks: no prompt that was computed elsewhere was on its engines meanwhile"
	}
	return fmt.Sprintf("the pick of request %d (%d tokens): %s, not %s", most[0].Index+1, most[worse].Input-most[worse].Cached, picked(most[worse]), picked(most[1-worse]))
}

// picked describes a pick.
func picked(r *replay.Record) string {
	switch {
	case r.Refused:
		return fmt.Sprintf("refused (%s)", r.Reason)
	case r.Remote:
		return fmt.Sprintf("%s to %s (remote, %s)", r.Prefill, r.Decode, r.Reason)
	}
	return fmt.Sprintf("%s (local, %s)", r.Decode, r.Reason)
}

// whyPicked returns why a request was picked for as it was, in a few words. It performs the run again, up to that pick if sessions allow it.
func (r *run) whyPicked(ctx context.Context, request int) (string, error) {
	o, trace := r.options, *r.requests
	o.Explain, o.Ended = request, nil
	if trace.Concurrency == 0 && !slices.ContainsFunc(trace.Requests, func(q replay.Request) bool { return q.After > 0 }) {
		trace.Requests = trace.Requests[:request] // later ones change nothing before
	}
	result, err := replay.Run(ctx, o, &trace)
	if err != nil {
		return "", err
	}
	x, err := r.explain(request, result.Story)
	if err != nil {
		return "", err
	}
	said := []string{fmt.Sprintf("%d of %d prompt tokens are not cached on the decode endpoint", x.Explanation.Decider.Uncached, x.Explanation.Decider.Tokens)}
	if p, ok := x.Explanation.Decider.Parameters.(map[string]any); ok && p["nonCachedTokens"] != nil {
		said[0] += fmt.Sprintf(" (nonCachedTokens %v)", p["nonCachedTokens"])
	}
	if x.Explanation.Trace != nil {
		for _, s := range x.Explanation.Trace.Stages {
			for _, c := range s.Candidates {
				if c.Chosen == 1 {
					said = append(said, fmt.Sprintf("%s stage: %s %s", s.Stage, c.Endpoint, c.Why))
				}
			}
		}
	}
	return strings.Join(said, "; "), nil
}

func (c *comparison) write(w io.Writer) error {
	fmt.Fprintf(w, "\n%s against %s, %s, %s, %.3g/s: %d picks differ\n", c.Second, c.First, c.Pool, c.Engine, c.Load, c.Differ)
	if d := c.Pick; d != nil {
		fmt.Fprintf(w, "the first one is request %d, at %s ms\n", d.Request, ms(d.At))
		for i, name := range []string{c.First, c.Second} {
			fmt.Fprintf(w, "  %s: %s\n    %s\n", name, d.Picks[i], d.Why[i])
		}
	}
	if c.Refused != [2]int{} {
		fmt.Fprintf(w, "only %s refused %d requests, only %s %d\n", c.First, c.Refused[0], c.Second, c.Refused[1])
	}
	if c.Shadow != nil {
		if err := c.Shadow.write(w, c.First, c.Second); err != nil {
			return err
		}
	}
	for _, part := range []struct {
		title   string
		changes []change
	}{{"lost most", c.Lost}, {"gained most", c.Gained}} {
		if len(part.changes) == 0 {
			continue
		}
		fmt.Fprintf(w, "%s, in ms, 1: %s, 2: %s\n", part.title, c.First, c.Second)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "  "+strings.Join(changeColumns, "\t"))
		for _, one := range part.changes {
			fmt.Fprintln(t, "  "+strings.Join(one.cells(), "\t"))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}

var changeColumns = []string{"request", "input", "E2E 1", "E2E 2", "TTFT 1", "TTFT 2", "waited 1", "waited 2", "cached 1", "cached 2", "pick 1", "pick 2",
	"what made the difference"}

func (c *change) cells() []string {
	cells := []string{fmt.Sprint(c.Request), fmt.Sprint(c.Input)}
	for _, times := range [][2]float64{c.E2E, c.TTFT, c.Waited} {
		cells = append(cells, ms(times[0]), ms(times[1]))
	}
	return append(cells, fmt.Sprint(c.Cached[0]), fmt.Sprint(c.Cached[1]), c.Picks[0], c.Picks[1], c.Cause)
}

// whys are what the runs were asked about.
type whys struct {
	Comparisons []*comparison `json:"comparisons,omitempty"`
	Explained   []explained   `json:"explanations,omitempty"`
}

// why answers what the flags ask about runs.
func (s *settings) why(ctx context.Context, runs []*run) (w whys, err error) {
	if s.Why.Compare {
		if w.Comparisons, err = comparisons(ctx, runs); err != nil {
			return whys{}, err
		}
	}
	for _, r := range runs {
		if r.story == nil {
			continue
		}
		x, err := r.explain(s.Why.Explain, r.story)
		if err != nil {
			return whys{}, err
		}
		w.Explained = append(w.Explained, x)
	}
	return w, nil
}

// text returns the answers for a terminal.
func (w *whys) text() ([]byte, error) {
	var b bytes.Buffer
	for _, c := range w.Comparisons {
		if err := c.write(&b); err != nil {
			return nil, err
		}
	}
	for i := range w.Explained {
		if err := w.Explained[i].write(&b); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}
