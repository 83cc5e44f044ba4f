package replay

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/replay"
)

// repick makes the picks of a capture again under the configuration of each run. If they cannot be, it says so, and the runs stand.
func repick(ctx context.Context, runs []*run, stale time.Duration, warnings io.Writer) {
	made := map[*config.Config]*replay.Repicked{}
	for _, r := range runs {
		if r.capture == nil {
			continue
		}
		picks, done := made[r.options.Config]
		if !done {
			var err error
			if picks, err = replay.Repick(ctx, r.options.Config, stale, r.capture, len(r.requests.Requests)); err != nil {
				fmt.Fprintf(warnings, "warning: the picks of the capture could not be made again under %s: %v\n", r.config, err)
			}
			made[r.options.Config] = picks
		}
		r.picks = picks
	}
}

// picksDetails are the picks of a capture that were made again.
type picksDetails struct {
	Captured   int                 `json:"captured"`
	Same       int                 `json:"same"`
	SameConfig bool                `json:"same_config"`
	Left       int                 `json:"left_out"`
	Different  []replay.Difference `json:"different"`
}

func (r *run) picksDetails() *picksDetails {
	p := r.picks
	if p == nil {
		return nil
	}
	return &picksDetails{p.Captured, p.Same, p.SameConfig, p.Left, append([]replay.Difference{}, p.Different...)}
}

// writePicks prints how the picks of a capture came out, once for each configuration.
func writePicks(w io.Writer, runs []*run) error {
	said := map[*replay.Repicked]bool{}
	for _, r := range runs {
		p := r.picks
		if p == nil || said[p] {
			continue
		}
		said[p] = true
		under := r.config
		if r.threshold != nil {
			under += " with threshold " + r.thresholdText()
		}
		how := "another configuration than the capture's"
		if p.SameConfig {
			how = "the capture's own configuration"
		}
		if _, err := fmt.Fprintf(w, "\nPicks under %s, %s, as the load was: %d of %d as captured.\n", under, how, p.Same, p.Captured); err != nil {
			return err
		}
		for _, d := range p.Different {
			fmt.Fprintf(w, "%8d  %s\n", d.N, d.What)
		}
		if p.Left > 0 {
			fmt.Fprintf(w, "%8d  not made again: flow control refused them, or the gateway allowed them a part of the pool\n", p.Left)
		}
	}
	return nil
}
