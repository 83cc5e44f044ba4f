package replay

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/epp/config"
)

// prefixScorer is the scorer whose weight advice is given for: against those of load scorers it says when a request leaves the engine that has its
// prompt cached.
const prefixScorer = "prefix-cache-scorer"

// weights of prefixScorer that are tried, of 0 only the load counts.
var weights = []float64{0, 1, 6, 12}

// weighed is what other weights than the built-in ones change on the best pool.
type weighed struct {
	usual  float64 // weight of prefixScorer
	weight float64 // that with the most goodput of those that were tried
	gain   between // in shares of the requests
	low    float64 // mean gain of the one with the least goodput
}

// worthwhile reports whether the best weight should take the place of the usual one.
func (w *weighed) worthwhile(met float64) bool { return w.gain.Low > 0 && w.gain.Mean > worthwhile*met }

// withWeight returns a configuration in which prefixScorer has a weight, and the one that it had; ok is false if no profile has the scorer.
func withWeight(c *config.Config, weight float64) (with *config.Config, had float64, ok bool, err error) {
	with, err = changed(c, func(all map[string]any) {
		profiles, _ := all["schedulingProfiles"].([]any)
		for _, one := range profiles {
			profile, _ := one.(map[string]any)
			plugins, _ := profile["plugins"].([]any)
			for _, one := range plugins {
				if p, _ := one.(map[string]any); p["pluginRef"] == prefixScorer {
					had, ok = number(p["weight"]), true
					p["weight"] = weight
				}
			}
		}
	})
	return with, had, ok, err
}

// number returns a number of YAML; 1, which is what a scorer weighs by default, if there is none.
func number(v any) float64 {
	switch v := v.(type) {
	case int:
		return float64(v)
	case float64:
		return v
	}
	return 1
}

// weigh replays the traffic on the best pool by its decision with other weights, and notes what that changes.
func (a *advice) weigh(ctx context.Context, t *trials, c *conclusion, to io.Writer) error {
	if t.engines == 1 {
		return nil
	}
	var all []*tried
	w := &weighed{}
	for _, weight := range weights {
		with, had, ok, err := withWeight(c.best.run.options.Config, weight)
		if err != nil || !ok {
			return err
		}
		one, err := t.one(c.best.run.pool, fmt.Sprintf("%s, %s %v", c.best.what, prefixScorer, weight), with)
		if err != nil {
			return err
		}
		all, w.usual = append(all, one), had
	}
	if err := a.perform(ctx, t.settings, all, to); err != nil {
		return err
	}
	for i, one := range all {
		gain := one.over(c.best)
		if i == 0 || gain.Mean > w.gain.Mean {
			w.weight, w.gain = weights[i], gain
		}
		if i == 0 || gain.Mean < w.low {
			w.low = gain.Mean
		}
	}
	c.weighed, c.tried = w, append(c.tried, all...)
	c.all = slices.SortedStableFunc(slices.Values(append(c.all, all...)), better)
	return nil
}

// words says it in words, where a share of the requests met the objective with the usual weight.
func (w *weighed) words(met float64) string {
	percent := func(gain float64) float64 { return 100 * gain / met }
	switch {
	case met == 0:
		return "What scorers weigh makes no difference where no request meets the objective."
	case w.worthwhile(met):
		return fmt.Sprintf("Give %s the weight %v instead of %v: %+.1f %% goodput (%+.1f to %+.1f).", prefixScorer, w.weight, w.usual, percent(w.gain.Mean),
			percent(w.gain.Low), percent(w.gain.High))
	}
	var others []string
	for _, one := range weights {
		others = append(others, strconv.FormatFloat(one, 'g', -1, 64))
	}
	unsure := ""
	if w.gain.Mean > worthwhile*met {
		unsure = ", but more is not certain by this traffic"
	}
	return fmt.Sprintf("Keep what scorers weigh: %s with %s instead of %v changes the goodput by %+.1f to %+.1f %%%s.", prefixScorer, strings.Join(others, ", "), w.usual,
		percent(w.low), percent(w.gain.Mean), unsure)
}
